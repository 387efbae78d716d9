"""The quick way from settings to flags gives what the slow one does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.greybox_on_grid import DEVICE_BYTES, tiny_config, tiny_flags

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "engine-memory": st.sampled_from((0.9, 1.3, 1.7, 2.1)),
        "max-num-seqs": st.integers(4, 128),
        "max-num-batched-tokens": st.sampled_from((256, 4096)),
        "enable-prefix-caching": st.booleans(),
        "block-size": st.sampled_from((32, 64, 128)),
        "speculation": st.sampled_from(("none", "ngram")),
        "num-speculative-tokens": st.integers(1, 4),
    },
)


@settings(max_examples=60)
@given(PARAMS)
def test_both_ways_agree(params):
    resolved = tiny_config().resolve(params, device_memory_bytes=DEVICE_BYTES).flags
    assert tiny_flags()(params) == dict(resolved)


def test_settings_do_not_leak_into_each_other():
    convert = tiny_flags()
    guessing = convert({"speculation": "ngram", "num-speculative-tokens": 3})
    assert "speculative-config" not in convert({"speculation": "none"})
    assert convert({"speculation": "ngram", "num-speculative-tokens": 3}) == guessing
