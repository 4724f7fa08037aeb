//! Logits of a language model in a folder: of the next token by a decoder, of each token by an encoder.
//!
//! ```sh
//! echo '[[5, 17, 3], [8, 1, 2]]' | cargo run -p brigade-models --example logits -- path/to/gpt2
//! ```
//!
//! Reads rows of token ids, all of one length, and writes the logits of each token, row by row; both as JSON.

use std::path::PathBuf;

use brigade_hf::weights::weights_file;
use brigade_hf::{Config, ConfigFile, Task};
use brigade_models::encoder::{Encoder, masked_lm};
use brigade_models::{CausalLm, LoadWeights, Strict, Tokens};
use burn::tensor::{Device, Int, Tensor, TensorData};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("give the folder of a model")?;
    let rows: Vec<Vec<i64>> = serde_json::from_reader(std::io::stdin())?;
    let length = rows.first().map_or(0, Vec::len);
    if rows.iter().any(|row| row.len() != length) {
        return Err("the rows must have one length".into());
    }
    let file = ConfigFile::read(&folder)?;
    let device = Device::flex();
    let (mut chain, mapping) = match &file.config {
        Config::Decoder(_) => {
            let model = CausalLm::from_config(&file.config, Some(length))?;
            (model.chain(0, &device)?, model.mapping())
        }
        Config::Encoder(_) => {
            let model = Encoder::from_config(&file.config, Task::MaskedLanguageModel, Some(length))?;
            (masked_lm(model.config(), model.adapters(), 0, &device), model.mapping())
        }
    };
    let weights = weights_file(&folder, &file.config, file.task)?;
    chain.load_weights(weights, &mapping, Strict::Parameters)?;
    chain.initialize(0)?;

    let shape = [rows.len(), length];
    let ids = Tensor::<2, Int>::from_data(TensorData::new(rows.concat(), shape), &device);
    let logits = chain.valid().predict(Tokens::from(ids))?.whole();
    let classes = logits.dims()[1];
    let logits: Vec<f32> = logits.into_data().try_to_vec()?;
    serde_json::to_writer(std::io::stdout(), &logits.chunks(classes).collect::<Vec<_>>())?;
    Ok(())
}
