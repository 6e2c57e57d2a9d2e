"""Decode the rows of a Ray dataset: `ds.map_batches(foretell.scale.Generate, ...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from foretell.engine.completion import Failure
from foretell.engine.engine import load
from foretell.engine.masked_text import MaskedText
from foretell.engine.options import GenerateOptions
from foretell.engine.prompt_files import CONTENT, parse_row
from foretell.engine.prompt_kinds import Prompt
from foretell.engine.rows import TYPES, columns_of, row_of
from foretell.errors import ForetellError, RequestError, one_of, whole
from foretell.extras import require_extra

if TYPE_CHECKING:
    import pyarrow as pa


class Generate:
    """Decodes batches of rows, each with a "prompt", a "text" or "messages", as a line of a prompt file has.

    Ray makes one per actor; each loads the model once:

        ds.map_batches(foretell.scale.Generate, fn_constructor_kwargs={"model": "tiny", "recipe": "swift"},
                       batch_size=64, compute=ray.data.ActorPoolStrategy(size=4), num_cpus=1)

    The columns of the result (`engine.rows.TYPES`) are added to those of the batch, their names after `prefix`. A row
    that cannot be decoded has an "error" and nulls; with `errors="raise"` it ends the pipeline. `fills` fills the masks
    of texts in place. `batch_size` is the number of rows decoded together; batches of several times as many are best.
    Further keywords are those of `generate`; `seed` and the prompt decide a sampled text, not the batch or the actor.
    """

    def __init__(
        self,
        model: str,
        *,
        fills: bool = False,
        errors: Literal["raise", "return"] = "return",
        prefix: str = "",
        batch_size: int = 8,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        compile: bool = False,  # noqa: A002  named after torch.compile
        quantize: str | None = None,
        packed: bool | None = None,
        **options: Unpack[GenerateOptions],
    ) -> None:
        require_extra("parquet")
        one_of("errors", errors, ("raise", "return"), RequestError)
        whole("batch_size", batch_size, 1, error=RequestError)
        self.errors, self.prefix, self.batch_size = errors, prefix, batch_size
        self.engine = load(model, device, dtype, compile=compile, quantize=quantize, packed=packed)
        self.engine.use_threads(threads)
        self.template = self.engine.fill_template(**options) if fills else self.engine.template(**options)

    def __call__(self, batch: Mapping[str, Any] | pa.Table) -> pa.Table:
        """Return the batch, as an Arrow table, with the columns of the results."""
        table = _table_of(batch)
        for name in TYPES:
            if f"{self.prefix}{name}" in table.column_names:
                raise RequestError(
                    f'the batch has a column "{self.prefix}{name}" already; choose a prefix for the results, such as '
                    'prefix="out_"'
                )
        given = table.select([name for name in CONTENT if name in table.column_names]).to_pylist()
        found: dict[int, Any] = {}
        prompts: list[Prompt] = []
        places: list[int] = []
        for place, row in enumerate(given):
            try:
                prompts.append(self._prompt(row, place))
                places.append(place)
            except ForetellError as error:
                if self.errors == "raise":
                    raise
                found[place] = Failure(error)
        pairs = [(one, self.template) for one in prompts]
        for index, done in self.engine.generate_iter(pairs, batch_size=self.batch_size, errors="return"):
            if isinstance(done, Failure) and self.errors == "raise":
                raise type(done.error)(f"row {places[index]} of a batch: {done}")
            found[places[index]] = done
        for name, column in columns_of([row_of(found[place]) for place in range(len(given))]).items():
            table = table.append_column(f"{self.prefix}{name}", column)
        return table

    def _prompt(self, row: Mapping[str, Any], place: int) -> Prompt:
        prompt = parse_row(row, place, f"row {place} of a batch").prompt
        return MaskedText(prompt) if self.template.fills else prompt


def _table_of(batch: Any) -> pa.Table:
    """Return a batch in any of Ray's formats (numpy, pandas, pyarrow) as an Arrow table."""
    import pyarrow as pa  # noqa: PLC0415  slow to import

    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, Mapping):
        return pa.table({name: pa.array(list(column)) for name, column in batch.items()})
    return pa.Table.from_pandas(batch, preserve_index=False)
