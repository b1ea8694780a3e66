"""Train a classifier of spoken instructions with transformers' Trainer; an example to copy.

    python scripts/train_classifier.py --label level --max-steps 200 --output-dir classifier
    python scripts/train_classifier.py ... --streaming            # nothing is loaded beforehand
    python scripts/train_classifier.py ... --resume               # from the last checkpoint
    torchrun --nproc_per_node=2 scripts/train_classifier.py ...   # on two processes

Every option of TrainingArguments may follow. Any string column can be the label. Every fifth row
is held out; on these the accuracy is measured, and a confusion matrix drawn. S2S-Arena is for
evaluation and has no training split: what this trains shows that a pipeline works.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from typing import Any

import datasets
import numpy as np
import torch
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForAudioClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

import s2s_arena

NUM_FOLDS = 5  # one of them is held out
NO_LABEL = "none"  # the class of rows whose column is empty, such as `emotion` of most

Dataset = Any  # datasets.Dataset, or datasets.IterableDataset when streaming
Row = dict[str, Any]


@dataclasses.dataclass
class Arguments:
    """What is trained on what; how is said by TrainingArguments."""

    label: str = dataclasses.field(
        default="category", metadata={"help": "String column to predict."}
    )
    config: str = dataclasses.field(
        default="all", metadata={"help": "'all', or a category of S2S-Arena."}
    )
    data_dir: str | None = dataclasses.field(
        default=None, metadata={"help": "Folder or hf:// address; default: the embedded edition."}
    )
    streaming: bool = dataclasses.field(
        default=False, metadata={"help": "Read rows as they are needed; wants --max_steps."}
    )
    model: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Folder or Hub id of a Wav2Vec2, HuBERT, WavLM or the like; "
            "default: a small Wav2Vec2 that knows nothing yet."
        },
    )
    resume: bool = dataclasses.field(
        default=False, metadata={"help": "Continue from the last checkpoint in --output_dir."}
    )


# --- Data ---------------------------------------------------------------------------------------


def load(arguments: Arguments, sampling_rate: int) -> Dataset:
    """Return the split, waveforms at the rate (Hz) that the model's feature extractor expects."""
    return datasets.load_dataset(
        "s2s_arena",
        arguments.config,
        split=s2s_arena.SPLIT,
        data_dir=arguments.data_dir,
        streaming=arguments.streaming,
        sampling_rate=sampling_rate,
    )


def find_label_names(dataset: Dataset, label: str) -> list[str]:
    """Return the values of a column, sorted; no recording is opened for it.

    Raises:
        ValueError: If there is no such string column, or nothing to tell apart.
    """
    columns = [name for name in dataset.column_names if name != "audio"]
    if label not in columns:
        raise ValueError(f"--label {label!r} is no column; expected one of {columns}")
    names = sorted({row[label] or NO_LABEL for row in dataset.select_columns([label])})
    if len(names) < 2:
        raise ValueError(f"--label {label!r} is {names} in every row; expected two values or more")
    return names


def split(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Return the rows to train on and every fifth, to evaluate on; a stream's too.

    In a stream each row is a shard, so that rows are divided without being read.
    """
    folds = [dataset.shard(NUM_FOLDS, index, contiguous=False) for index in range(NUM_FOLDS)]
    return datasets.concatenate_datasets(folds[:-1]), folds[-1]


def prepare_stream(stream: Dataset, seed: int) -> Dataset:
    """Shuffle a stream, and let it begin anew without end.

    Trainer counts a stream's steps and not its rows: without `repeat`, training that is resumed in
    a later epoch would go on at another row than the one it stopped at.
    """
    return stream.shuffle(seed=seed).repeat(None)


def collate(rows: list[Row], extractor: Any, label: str, label2id: dict[str, int]) -> Row:
    """Turn rows into a batch: padded waveforms, and the label's number under `labels`."""
    batch = extractor(
        [row["audio"]["array"] for row in rows],
        sampling_rate=rows[0]["audio"]["sampling_rate"],
        padding=True,
        return_tensors="pt",
    )
    labels = torch.tensor([label2id[row[label] or NO_LABEL] for row in rows])
    return {**batch, "labels": labels}


# --- Model --------------------------------------------------------------------------------------


def build_extractor(model: str | None) -> Any:
    """Return the model's feature extractor, or that of a Wav2Vec2 at 16 kHz."""
    if model is None:
        return Wav2Vec2FeatureExtractor(return_attention_mask=True)
    return AutoFeatureExtractor.from_pretrained(model)


def build_model(model: str | None, label2id: dict[str, int]) -> Any:
    """Return the model with a new head, or a small Wav2Vec2 of random weights."""
    labels = {"label2id": label2id, "id2label": {number: name for name, number in label2id.items()}}
    if model is not None:
        return AutoModelForAudioClassification.from_pretrained(
            model, ignore_mismatched_sizes=True, **labels
        )
    config = Wav2Vec2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        conv_dim=(32,) * 7,
        feat_extract_norm="layer",  # which lets padding make no difference
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        classifier_proj_size=64,
        **labels,
    )
    return Wav2Vec2ForSequenceClassification(config)


def find_checkpoint(output_dir: str, resume: bool, label2id: dict[str, int]) -> str | None:
    """Return the checkpoint to go on from, or None to begin.

    Raises:
        ValueError: If there is none to resume, one that would be mixed with this training, or one
            of other labels.
    """
    checkpoint = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
    if resume and checkpoint is None:
        raise ValueError(f"--resume: no checkpoint in {output_dir}; leave it out to begin")
    if not resume and checkpoint is not None:
        raise ValueError(f"{checkpoint} exists: add --resume, or choose another --output-dir")
    if checkpoint is not None:
        known = AutoConfig.from_pretrained(checkpoint).label2id
        if known != label2id:
            raise ValueError(
                f"{checkpoint} was trained on the labels {sorted(known)}; "
                f"expected {sorted(label2id)}: resume with the same --label and data"
            )
    return checkpoint


# --- Evaluation ---------------------------------------------------------------------------------


def measure(predictions: Any) -> dict[str, float]:
    """Return the share of rows whose most likely label is the right one."""
    likeliest = np.argmax(predictions.predictions, axis=-1)
    return {"accuracy": float(accuracy_score(predictions.label_ids, likeliest))}


def draw_confusions(label_ids: Any, likeliest: Any, names: list[str], path: str) -> None:
    """Write a picture: a row for each true label, a column for each predicted one."""
    from matplotlib.figure import Figure

    side = 3 + 0.35 * len(names)  # inches
    figure = Figure(figsize=(side, side), layout="constrained")
    ConfusionMatrixDisplay.from_predictions(
        label_ids,
        likeliest,
        labels=range(len(names)),
        display_labels=names,
        xticks_rotation="vertical",
        cmap="Blues",
        colorbar=False,
        ax=figure.subplots(),
    )
    figure.savefig(path, dpi=150)


def evaluate(trainer: Any, held_out: Dataset, names: list[str]) -> None:
    """Predict the held-out rows; write the accuracy and the confusion matrix beside the model."""
    result = trainer.predict(held_out, metric_key_prefix="eval")
    if not trainer.is_world_process_zero():
        return
    trainer.save_metrics("eval", result.metrics)
    picture = os.path.join(trainer.args.output_dir, "confusion_matrix.png")
    likeliest = np.argmax(result.predictions, axis=-1)
    draw_confusions(result.label_ids, likeliest, names, picture)
    print(
        f"accuracy {result.metrics['eval_accuracy']:.2f} on {len(likeliest)} held-out rows; "
        f"confusion matrix in {picture}"
    )


# --- Command line -------------------------------------------------------------------------------


def train(arguments: Arguments, training: TrainingArguments) -> None:
    """Train, save and evaluate.

    Raises:
        ValueError: If an option can't be right; data errors of s2s_arena are such too.
    """
    if arguments.streaming and training.max_steps <= 0:
        raise ValueError("--streaming: a stream has no length; say --max-steps N")
    set_seed(training.seed)
    # Trainer would drop `audio`, which the collator needs and the model never sees.
    training.remove_unused_columns = False
    if arguments.streaming:
        # Else the first of several processes makes the batches and can't join those of
        # different lengths.
        training.accelerator_config.dispatch_batches = False
    extractor = build_extractor(arguments.model)
    with training.main_process_first(desc="loading"):
        dataset = load(arguments, extractor.sampling_rate)
    names = find_label_names(dataset, arguments.label)
    label2id = {name: number for number, name in enumerate(names)}
    checkpoint = find_checkpoint(training.output_dir, arguments.resume, label2id)
    train_dataset, held_out = split(dataset)
    if arguments.streaming:
        train_dataset = prepare_stream(train_dataset, training.seed)
        # Processes that share a stream of unknown length end after unequal numbers of batches,
        # and fail where they exchange their predictions; of a list they share every row.
        held_out = list(held_out)
    trainer = Trainer(
        build_model(arguments.model, label2id),
        training,
        data_collator=functools.partial(
            collate, extractor=extractor, label=arguments.label, label2id=label2id
        ),
        train_dataset=train_dataset,
        eval_dataset=held_out,
        processing_class=extractor,
        compute_metrics=measure,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    evaluate(trainer, held_out, names)


def main(argv: list[str]) -> int:
    """Run the command line; return the exit status."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = HfArgumentParser((Arguments, TrainingArguments), description=summary)
    has_accelerator = torch.accelerator.is_available()
    parser.set_defaults(
        output_dir="classifier",
        report_to=["none"],
        logging_steps=10,
        save_steps=50,
        # Processes of torchrun that find no accelerator don't join unless this is said: each
        # would train alone, on every row.
        use_cpu=not has_accelerator,
        dataloader_pin_memory=has_accelerator,
    )
    arguments, training = parser.parse_args_into_dataclasses(argv)
    try:
        train(arguments, training)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
