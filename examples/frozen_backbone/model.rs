//! The convolutional net of the example `images`, with a head of its own.

#[allow(dead_code)] // Its `Net::forward`.
#[path = "../images/model.rs"]
mod images;

use burn::prelude::*;

pub use images::{Convolution, Head, correct, loss};

#[derive(Module, Debug)]
pub struct Net {
    pub stem: Convolution,
    pub body: Convolution,
    pub classifier: Head,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        let images::Net { stem, body, head: classifier } = images::Net::new(device);
        Self { stem, body, classifier }
    }

    /// From pictures `[pictures, 1, SIZE, SIZE]` to scores `[pictures, SHAPES]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        self.classifier.forward(self.body.forward(self.stem.forward(pictures)))
    }
}
