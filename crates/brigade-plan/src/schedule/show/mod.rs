//! Schedules as text and as pictures.

mod svg;
mod table;
