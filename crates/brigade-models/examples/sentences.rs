//! Embeddings of texts by an encoder in a folder, as `sentence-transformers` computes them: the mean of its vectors, scaled to a length of 1.
//!
//! ```sh
//! echo '[[101, 7592, 102], [101, 2088, 999, 102]]' | cargo run -p brigade-models --example sentences -- path/to/all-MiniLM-L6-v2
//! ```
//!
//! Reads a list of texts as their token ids, and writes a list of as many vectors, both as JSON.

use std::path::PathBuf;

use brigade_hf::weights::weights_file;
use brigade_hf::{Config, ConfigFile, Task};
use brigade_models::encoder::{mapping, sentences};
use brigade_models::{LoadWeights, Strict, Tokens};
use burn::tensor::{Device, Tensor, TensorData};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("give the folder of an encoder")?;
    let texts: Vec<Vec<i64>> = serde_json::from_reader(std::io::stdin())?;
    let file = ConfigFile::read(&folder)?;
    let Config::Encoder(config) = &file.config else { return Err("the model is no encoder".into()) };
    let device = Device::flex();
    let mut chain = sentences(config, true, 0, &device);
    let weights = weights_file(&folder, &file.config, file.task)?;
    chain.load_weights(weights, &mapping(config.family, Task::Base), Strict::Parameters)?;
    chain.initialize(0)?;
    let chain = chain.valid();

    // All texts are padded to the longest: a text sees its own tokens, and each token of padding itself.
    let length = texts.iter().map(Vec::len).max().unwrap_or_default();
    let (mut ids, mut bounds) = (Vec::new(), Vec::new());
    for text in &texts {
        ids.extend(text.iter().copied().chain(std::iter::repeat_n(0, length - text.len())));
        let end = text.len() as i64;
        bounds.extend(
            text.iter().flat_map(|_| [0, end]).chain((end..length as i64).flat_map(|at| [at, at + 1])),
        );
    }
    let shape = [texts.len(), length];
    let tokens = Tokens {
        ids: Tensor::from_data(TensorData::new(ids, shape), &device),
        documents: Some(Tensor::from_data(TensorData::new(bounds, [texts.len(), length, 2]), &device)),
        types: None,
    };
    let vectors = chain.predict(tokens)?;
    let width = vectors.dims()[1];
    let vectors: Vec<f32> = vectors.into_data().try_to_vec()?;
    serde_json::to_writer(std::io::stdout(), &vectors.chunks(width).collect::<Vec<_>>())?;
    Ok(())
}
