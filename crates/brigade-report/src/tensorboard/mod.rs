//! TensorBoard event files.
//!
//! A file is a sequence of TFRecords: length (8 bytes, little-endian), masked CRC-32C of the length, data,
//! masked CRC-32C of the data. The data of each is one protocol buffer `tensorflow.Event`. Sources:
//! `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto` and
//! `tensorflow/core/framework/summary.proto`.
//!
//! TensorBoard reads a folder's files one after the other, in order of their names. Where steps run again, an event
//! announces that (`SessionLog` with status `START`): on reading it TensorBoard drops all points of its step and later ones
//! (`_CheckForRestartAndMaybePurge` in `tensorboard/backend/event_processing/event_accumulator.py`). Its newer loader
//! (`tensorboard/data/server/`) drops them curve by curve instead, when an earlier step comes.

pub mod event_file;
mod protobuf;
mod scalars;
