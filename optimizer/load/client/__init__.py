"""The streaming client: one HTTP/1.1 exchange, its events, its tokens and their times.

`optimizer.load.completion` is its front. Everything below the socket is plain functions of bytes and a time, so that
the same bytes give the same trace wherever they are cut.
"""
