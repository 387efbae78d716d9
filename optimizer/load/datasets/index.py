"""What a file of requests holds: found in one pass, kept as a few numbers a row, read again row by row."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from optimizer.core.errors import InputError
from optimizer.load.datasets.json_list import elements
from optimizer.load.datasets.raw_file import RawFile
from optimizer.load.datasets.rows import Row, RowNeeds, conversation_row, guessed_tokens, prompt_row, trace_row
from optimizer.load.datasets.strict_json import decode_line
from optimizer.load.sources import Columns, JsonlSource, ShareGptSource, Source, TraceSource

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DatasetIndex:
    """A file of requests. All arrays have an element a row; about 60 bytes a row are held, and no text.

    Attributes:
        sha256: Of the file as it lies on disk.
        prompt_tokens: Length of the prompt; of text of unknown length the guess of `guessed_tokens`.
        output_tokens: Length of the answer, or a guess; 0 where the row does not tell.
        timestamps_s: When each request came, ascending; None unless the source is a trace.
        left_out: Conversations that do not begin with a question and its answer.
        has_text: Whether any row has text (a prompt or messages).
        has_bare_lengths: Whether any row has a length alone.
        highest_token_id: Of all prompts of token ids; -1 where there are none.
        questions_tokens: About how many tokens the questions of a conversation have together.
        earlier_answers_tokens: The same of its answers, without the last.
        turns: Questions of each conversation; 1 for any other row.
    """

    source: Source
    needs: RowNeeds
    sha256: str
    prompt_tokens: IntArray
    output_tokens: IntArray
    timestamps_s: FloatArray | None
    left_out: int
    has_text: bool
    has_bare_lengths: bool
    highest_token_id: int
    questions_tokens: IntArray
    earlier_answers_tokens: IntArray
    turns: IntArray
    _file: RawFile
    _offsets: IntArray
    _sizes: IntArray

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def row(self, number: int) -> Row:
        """Row `number`, from 0; rows of a trace go by time.

        Raises:
            InputError: The file has changed since it was checked.
        """
        size = int(self._sizes[number])
        if size == 0:
            return self._bare(number)
        try:
            data = decode_line(self._file.read(int(self._offsets[number]), size))
            row = _row(data, self.source, self.needs)
        except ValueError as error:
            raise InputError(f"{self.source.path}: the file has changed while it was in use: {error}") from None
        return self._bare(number) if row is None else row

    def _bare(self, number: int) -> Row:
        return Row(None, int(self.prompt_tokens[number]), int(self.output_tokens[number]) or None)

    def longest_conversation_tokens(self, longest_answer_tokens: int | None) -> int:
        """About the longest prompt of a last turn, which repeats the whole conversation before it.

        Args:
            longest_answer_tokens: Longest answer that is asked for; None for those of the file.
        """
        if longest_answer_tokens is None:
            return int((self.questions_tokens + self.earlier_answers_tokens).max())
        return int((self.questions_tokens + (self.turns - 1) * longest_answer_tokens).max())


def index_of(source: Source, needs: RowNeeds) -> DatasetIndex:
    """Reads and checks the file, unless that was done since it last changed.

    Raises:
        InputError: It cannot be read, has no rows, or a row is wrong; file and line are named.
    """
    try:
        stat = Path(source.path).stat()
    except OSError as error:
        raise InputError(
            f"{source.path}: the file cannot be read: {error.strerror}", hint="check source.path in the workload"
        ) from None
    return _read(source, needs, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _read(source: Source, needs: RowNeeds, _mtime_ns: int, _size: int) -> DatasetIndex:
    scan = _Scan(source, needs, RawFile(Path(source.path)))
    scan.run()
    return scan.index()


def _row(data: object, source: Source, needs: RowNeeds) -> Row | None:
    match source:
        case JsonlSource():
            return prompt_row(data, needs)
        case TraceSource(columns=columns):
            return trace_row(data, needs, columns)
        case ShareGptSource():
            return conversation_row(data, needs)


class _Scan:
    def __init__(self, source: Source, needs: RowNeeds, file: RawFile) -> None:
        self._source, self._needs, self._file = source, needs, file
        self._columns: dict[str, array[Any]] = {
            name: array("q") for name in ("prompt", "output", "questions", "earlier", "turns", "offset", "size")
        }
        self._times_s = array("d")
        self._left_out = 0
        self._highest_id = -1
        self._csv_line = 0
        self._has_text = self._has_bare = False

    def run(self) -> None:
        """Reads every row, or as many as are wanted."""
        for line, offset, size, data in self._raw_rows():
            try:
                row = _row(data, self._source, self._needs)
            except ValueError as error:
                raise self._file.wrong(line, str(error)) from None
            if row is None:
                self._left_out += 1
                continue
            self._add(row, offset, size)
            if len(self._times_s) == self._source.rows:
                return

    def _raw_rows(self) -> Iterator[tuple[int, int, int, object]]:
        """Line, offset and size in bytes (0 when it is not read again), and data of each row."""
        path = PurePath(self._source.path)
        if isinstance(self._source, ShareGptSource):
            for found in elements(self._file):
                yield found.line, found.offset, found.size, found.value
        elif isinstance(self._source, TraceSource) and ".csv" in path.suffixes[-2:]:
            for line, data in self._csv_rows(self._source.columns):
                yield line, 0, 0, data
        else:
            for line, offset, text in self._file.lines():
                try:
                    yield line, offset, len(text), decode_line(text)
                except ValueError as error:
                    raise self._file.wrong(line, str(error)) from None

    def _csv_rows(self, columns: Columns) -> Iterator[tuple[int, Mapping[str, object]]]:
        reader = csv.reader(self._csv_lines())
        wanted = (columns.timestamp, columns.prompt_tokens, columns.output_tokens)
        head: list[str] = []
        try:
            for cells in reader:
                if not head:
                    head = [cell.strip() for cell in cells]
                    self._check_head(head, wanted[: 2 + self._needs.output_tokens])
                elif len(cells) != len(head):
                    raise self._file.wrong(self._csv_line, f"{len(cells)} cells, and the head has {len(head)}")
                else:
                    row = dict(zip(head, cells, strict=True))
                    yield self._csv_line, {name: row[name] for name in wanted if name in row}
        except csv.Error as error:
            raise self._file.wrong(self._csv_line, f"this is not CSV: {error}") from None

    def _csv_lines(self) -> Iterator[str]:
        for line, _, data in self._file.lines():
            self._csv_line = line
            try:
                yield data.decode("utf-8") + "\n"
            except UnicodeDecodeError as error:
                raise self._file.wrong(line, f"this is not UTF-8 text (byte {error.start + 1} of the line)") from None

    def _check_head(self, head: list[str], wanted: tuple[str, ...]) -> None:
        for name in wanted:
            if name not in head:
                raise self._file.wrong(
                    1, f"the head has no column {name!r}; it has {', '.join(head)}: name them in source.columns"
                )

    def _add(self, row: Row, offset: int, size: int) -> None:
        guessed = sum(guessed_tokens(text) for text in row.texts)
        answers = [guessed_tokens(answer) for answer in row.answers]
        self._has_text |= bool(row.texts)
        self._has_bare |= row.prompt is None
        if isinstance(row.prompt, list):
            self._highest_id = max(self._highest_id, *row.prompt)
        values = {
            "prompt": guessed if row.prompt_tokens is None else row.prompt_tokens,
            "output": row.output_tokens or next(iter(answers), 0),
            "questions": sum(guessed_tokens(question) for question in row.questions),
            "earlier": sum(answers[:-1]),
            "turns": max(1, len(row.questions)),
            "offset": offset,
            "size": 0 if row.prompt is None else size,
        }
        for name, value in values.items():
            self._columns[name].append(value)
        self._times_s.append(row.timestamp_s or 0.0)

    def index(self) -> DatasetIndex:
        """What was found.

        Raises:
            InputError: Nothing.
        """
        if not self._times_s:
            left_out = f": of {self._left_out} conversations none begins with a question and its answer"
            raise InputError(
                f"{self._source.path}: the file has no requests{left_out if self._left_out else ', it is empty'}",
                hint="give source.path another file",
            )
        times_s = np.array(self._times_s, dtype=np.float64)
        order = np.argsort(times_s, kind="stable")
        column = {name: np.array(values, dtype=np.int64)[order] for name, values in self._columns.items()}
        return DatasetIndex(
            source=self._source,
            needs=self._needs,
            sha256=self._file.sha256,
            prompt_tokens=column["prompt"],
            output_tokens=column["output"],
            timestamps_s=times_s[order] if isinstance(self._source, TraceSource) else None,
            left_out=self._left_out,
            has_text=self._has_text,
            has_bare_lengths=self._has_bare,
            highest_token_id=self._highest_id,
            questions_tokens=column["questions"],
            earlier_answers_tokens=column["earlier"],
            turns=column["turns"],
            _file=self._file,
            _offsets=column["offset"],
            _sizes=column["size"],
        )
