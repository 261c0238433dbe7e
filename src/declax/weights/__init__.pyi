"""Weights from elsewhere: maps of names and layouts, by which `load_weights` reads and `save_weights` writes."""

from declax.weights.layouts import Destination as Destination
from declax.weights.layouts import Layout as Layout
from declax.weights.layouts import concatenate as concatenate
from declax.weights.layouts import reshape as reshape
from declax.weights.layouts import split as split
from declax.weights.layouts import transpose as transpose
from declax.weights.loading import TensorMismatch as TensorMismatch
from declax.weights.loading import WeightsReport as WeightsReport
from declax.weights.loading import load_weights as load_weights
from declax.weights.loading import save_weights as save_weights
from declax.weights.maps import WeightMap as WeightMap
