//! The result of a finished run.

use std::path::{Path, PathBuf};

use brigade_core::{Activation, Chain, Engine};

use crate::checkpoint::RunProgress;

/// The result of a finished run: the trained model, spread over the ranks as it was trained, and its losses.
///
/// ```no_run
/// # use brigade::{Dataset, Model, Session, Training};
/// # use burn::prelude::*;
/// # fn run<D>(
/// #     session: &Session,
/// #     model: Model<Tensor<2>, Tensor<2>, Tensor<2>>,
/// #     data: D,
/// # ) -> anyhow::Result<()>
/// # where
/// #     D: Dataset<Input = Tensor<2>, Target = Tensor<2>>,
/// # {
/// let mut trained = session.train(model, Training::on(data))?;
/// // On any mesh: all ranks call it, and each has the output.
/// let output = trained.predict(Tensor::ones([1, 2], &session.device()))?;
/// // The whole model on rank 0 alone.
/// if let Some(model) = trained.model_on(0)? {
///     assert_eq!(model.predict(Tensor::ones([1, 2], &session.device()))?.into_data(), output.into_data());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Trained<I, O, T> {
    engine: Engine<I, O, T>,
    weights: PathBuf,
    /// Mean loss over the global batches of the last update, also if that was made before the run was resumed. NaN if there is
    /// none, or if an older version saved the checkpoint that the run was resumed from.
    pub loss: f64,
    /// Mean loss of the last validation, if there was one.
    pub validation_loss: Option<f64>,
    /// Steps of the run.
    pub steps: u64,
    /// The step of the best checkpoint, where the run keeps one (`checkpoint.keep_best`,
    /// [`Control::SaveBest`](crate::Control::SaveBest)). The weights are those of this step if `checkpoint.load_best_at_end` is
    /// set and its checkpoint can be loaded, else those of the last step.
    pub best_step: Option<u64>,
    /// Why the run ended before its last step, if it did: early stopping, or a hook.
    pub stopped: Option<String>,
}

impl<I, O, T> Trained<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone + 'static,
{
    pub(super) fn new(
        engine: Engine<I, O, T>,
        progress: &RunProgress,
        stopped: Option<String>,
        weights: PathBuf,
    ) -> Self {
        let RunProgress { step: steps, loss, validation_loss, best_step, .. } = *progress;
        Self { engine, weights, loss, validation_loss, steps, best_step, stopped }
    }

    /// The model's output for an input, as validation computes it: without dropout, and with floats in fp32. It works on every mesh
    /// and has the same bits on all of them. All ranks call it together, and each gets the output: the ranks of one pipeline give the
    /// same input; data-parallel ranks may give another one each, and get the output for theirs.
    ///
    /// # Errors
    /// If a block refuses the input, or a rank failed.
    pub fn predict(&mut self, input: I) -> anyhow::Result<O> {
        Ok(self.engine.predict(input)?)
    }

    /// The model as this rank has it. Under pipeline stages or ZeRO-3 that is only a part, whose values cannot be read:
    /// see [`predict`](Self::predict) and [`model_on`](Self::model_on).
    pub fn model(&self) -> &Chain<I, O> {
        self.engine.chain()
    }

    /// The whole model on rank `rank`, for inference, with its values in fp32; none on the other ranks. All ranks call it together, on any mesh.
    /// That rank needs room for the whole model beside its own part.
    ///
    /// # Errors
    /// If a rank failed.
    pub fn model_on(&self, rank: usize) -> anyhow::Result<Option<Chain<I, O>>> {
        Ok(self.engine.whole_chain(rank)?)
    }

    /// The run's file of weights, `model.safetensors`, or the index of several if they are larger than `output.max_shard_size`. It has the whole model, on
    /// any mesh.
    pub fn weights_file(&self) -> &Path {
        &self.weights
    }
}
