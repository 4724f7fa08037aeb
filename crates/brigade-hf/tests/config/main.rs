//! Configurations, compared with what `transformers` makes of them (`fixtures/make_configs.py`).

#![allow(clippy::unwrap_used)]

mod known;
mod odd;
mod refused;
mod transformers;
mod written;

use std::path::Path;

use brigade_hf::{Config, Family, HfError};
use serde_json::{Map, Value};

/// What `transformers` makes of a family.
fn fixture(family: Family) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/configs");
    serde_json::from_slice(&std::fs::read(folder.join(format!("{family}.json"))).unwrap()).unwrap()
}

/// Each family, with the cases of its fixture.
fn cases() -> impl Iterator<Item = (Family, Value)> {
    Family::ALL.into_iter().flat_map(|family| {
        let cases = fixture(family)["cases"].take();
        cases.as_array().unwrap().clone().into_iter().map(move |case| (family, case))
    })
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

fn read(value: &Value) -> Result<Config, HfError> {
    Config::from_fields("config.json", object(value))
}
