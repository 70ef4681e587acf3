"""Made-up inputs of the models of ``packaged.py``: in their packages' own shapes and value ranges.

Lines of glyphs for text readers, voiced sound for speech models, files of this repository for the
file classifier, tokens within the vocabulary for encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchlib.command import ROOT

Array = NDArray[Any]
Inputs = Mapping[str, Array]
MakeInputs = Callable[[int, np.random.Generator], Inputs]


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


def pp_ocr(height: int, width: int, lines: int = 1) -> MakeInputs:
    """Makes images of ``lines`` lines of text."""
    return lambda rows, rng: {
        "x": _colour(text_lines(rows, rng, height=height, width=width, lines=lines))
    }


def file_starts_and_ends(rows: int, rng: np.random.Generator) -> Inputs:
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


def silero(rows: int, rng: np.random.Generator) -> Inputs:
    """Pieces of 36 ms of sound, with a state and the sampling rate."""
    state = 0.1 * rng.standard_normal((rows, 2, 1, 128), np.float32)
    sound = voices(rows, rng, 576, 16_000)[:, None]
    return {"input": sound, "state": state, "sr": np.full((rows, 1), 16_000)}


def silero_frames(rows: int, rng: np.random.Generator) -> Inputs:
    """Thirty of these, with states of zeros."""
    zeros = np.zeros((rows, 1, 1, 128), np.float32)
    frames = voices(rows * 30, rng, 576, 16_000).reshape(rows, 30, 576)
    return {"input": frames, "h": zeros, "c": zeros}


def face(rows: int, rng: np.random.Generator) -> Inputs:
    """Patches of colours, from −1 to 1."""
    return {"input_3": (255 * photographs(rows, rng, 48) - np.float32(127.5)) / np.float32(128)}


def page(rows: int, rng: np.random.Generator) -> Inputs:
    """Pages of text in three equal channels, less the mean of ImageNet's over its deviation."""
    grey = text_lines(rows, rng, height=800, width=608, lines=20)
    return {"image": np.repeat((grey[:, None, None] - np.float32(0.45)) / np.float32(0.225), 3, 2)}


def pitch(rows: int, rng: np.random.Generator) -> Inputs:
    """A second of sound, and the lowest and highest pitch to look for, Hz."""
    return {
        "audio": voices(rows, rng, 16_000, 16_000)[:, None],
        "fmin": np.full((rows, 1), 46.875, np.float32),
        "fmax": np.full((rows, 1), 2093.75, np.float32),
    }


def noise(**shapes: tuple[int, ...]) -> MakeInputs:
    """Rows of what was standardized: normal, float32 ``[rows, *shape]`` by input."""
    return lambda rows, rng: {
        name: rng.standard_normal((rows, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def log_power(sound: Array, frames: int, bins: int, *, hop: int) -> Array:
    """Logarithm of the power in windows of ``sound``, float32 ``[rows, frames, bins]``."""
    starts = hop * np.arange(frames)
    windows = sound[:, starts[:, None] + np.arange(2 * hop)] * np.hamming(2 * hop)
    power = np.abs(np.fft.rfft(windows, n=2 * (bins - 1))) ** 2
    return np.asarray(np.log10(power + 1e-12), np.float32)


def echo_features(rows: int, rng: np.random.Generator) -> Inputs:
    """Two seconds of the far end, the microphone and what is left of it, as log-mel-like bins."""
    spectra = log_power(voices(3 * rows, rng, 32_256, 16_000), 125, 160, hop=256)
    state = np.zeros((rows, 4, 1, 64), np.float32)
    return {"input": spectra.reshape(rows, 1, 3, 125, 160), "h0": state}


def concealed_speech(rows: int, rng: np.random.Generator) -> Inputs:
    """Two seconds of speech as log-power spectra, and the rater whose opinion is asked."""
    spectra = log_power(voices(rows, rng, 32_256, 16_000), 125, 257, hop=256) / 2
    rater = rng.standard_normal((rows, 1, 64)).astype(np.float32)
    return {"degraded_audio": spectra[:, None, None], "rater_embed": rater}


def eight_seconds(rows: int, rng: np.random.Generator) -> Inputs:
    """Whisper's features: the logarithm of the power, its highest 8 decades, around 0."""
    spectra = log_power(voices(rows, rng, 128_320, 16_000), 800, 80, hop=160)
    clipped = np.maximum(spectra, spectra.max(axis=(1, 2), keepdims=True) - 8)
    return {"input_features": np.moveaxis((clipped + 4) / 4, 2, 1).astype(np.float32)}


def thai_letters(rows: int, rng: np.random.Generator) -> Inputs:
    """Numbers of 21 letters around each one, and of their kinds."""
    return {
        "input_1": rng.integers(0, 80, (rows, 21)).astype(np.float32),
        "input_2": rng.integers(0, 12, (rows, 21)).astype(np.float32),
    }


def tokens(rows: int, rng: np.random.Generator) -> Inputs:
    """Sentences of 6 to 126 word pieces between [CLS] (101) and [SEP] (102), padded by 0."""
    ids = np.zeros((rows, 128), np.int64)
    mask = np.zeros((rows, 128), np.int64)
    for row, kept in zip(ids, mask, strict=True):
        words = int(rng.integers(6, 127))
        row[: words + 2] = [101, *rng.integers(1996, 30_000, words), 102]
        kept[: words + 2] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
