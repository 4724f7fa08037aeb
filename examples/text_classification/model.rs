//! A transformer that reads a sentence and names its class.

use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::{prelude::*, tensor::activation};

use crate::data::{CLASSES, LENGTH, WORDS};

const WIDTH: usize = 32;

#[derive(Module, Debug)]
pub struct Classifier {
    pub embedding: WordsAndPlaces,
    pub encoder: TransformerEncoder,
    pub head: Head,
}

/// A vector for each word, and one for its place in the sentence.
#[derive(Module, Debug)]
pub struct WordsAndPlaces {
    words: Embedding,
    places: Embedding,
    dropout: Dropout,
}

#[derive(Module, Debug)]
pub struct Head {
    linear: Linear,
}

impl Classifier {
    pub fn new(device: &Device) -> Self {
        Self {
            embedding: WordsAndPlaces {
                words: EmbeddingConfig::new(WORDS.len(), WIDTH).init(device),
                places: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
                dropout: DropoutConfig::new(0.1).init(),
            },
            encoder: TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 4, 2).init(device),
            head: Head { linear: LinearConfig::new(WIDTH, CLASSES).init(device) },
        }
    }

    /// From tokens `[sentences, LENGTH]` to scores `[sentences, CLASSES]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let x = self.embedding.forward(tokens);
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        self.head.forward(x)
    }
}

impl WordsAndPlaces {
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let places = Tensor::arange(0..LENGTH as i64, &tokens.device()).unsqueeze();
        self.dropout.forward(self.words.forward(tokens) + self.places.forward(places))
    }
}

impl Head {
    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        self.linear.forward(x.mean_dim(1).squeeze_dim(1))
    }
}

/// The cross entropy, summed over the sentences.
pub fn loss(scores: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    activation::log_softmax(scores, 1).gather(1, classes.unsqueeze_dim(1)).sum().neg()
}

/// How many sentences get the right class.
pub fn correct(scores: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    scores.argmax(1).squeeze_dim(1).equal(classes).float().sum()
}
