//! What codes have left out, between two updates.

use std::sync::Arc;

/// What codes have left out of some numbers so far (error feedback: Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et
/// al., "Error feedback fixes SignSGD", 2019). It belongs into checkpoints.
///
/// Codes of a step see what those before them left out at once; the step's update [keeps](Self::commit) it or not.
#[derive(Debug, Clone, Default)]
pub struct ErrorFeedback {
    /// As of the last update; none where nothing is left out.
    kept: Option<Arc<Vec<f32>>>,
    /// With the codes since then.
    next: Vec<f32>,
}

impl ErrorFeedback {
    /// Nothing left out, of this many numbers.
    pub fn zeros(count: usize) -> Self {
        Self::from(vec![0.0; count])
    }

    /// None at all: where codes leave nothing out that must be fed back.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.kept.is_none()
    }

    /// As of the last update.
    pub fn kept(&self) -> Option<&Arc<Vec<f32>>> {
        self.kept.as_ref()
    }

    /// Adds them to numbers that leave nothing out.
    pub fn add_to(&mut self, values: &mut [f32]) {
        values.iter_mut().zip(&self.next).for_each(|(value, error)| *value += error);
        self.next.fill(0.0);
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        2 * (size_of::<f32>() * self.next.len()) as u64
    }

    /// What numbers from `start` on are to be increased by, and what the next codes leave out of them; empty if there are none.
    pub(crate) fn next(&mut self, start: usize, count: usize) -> &mut [f32] {
        if self.is_none() { &mut [] } else { &mut self.next[start..start + count] }
    }

    /// Says whether the codes since the last update made one. If not, they have not been.
    pub fn commit(&mut self, updates: bool) {
        let Some(kept) = &mut self.kept else { return };
        match (updates, Arc::get_mut(kept)) {
            (false, _) => self.next.copy_from_slice(kept),
            (true, Some(kept)) => kept.copy_from_slice(&self.next),
            // A checkpoint is being written of it.
            (true, None) => *kept = Arc::new(self.next.clone()),
        }
    }
}

impl From<Vec<f32>> for ErrorFeedback {
    fn from(values: Vec<f32>) -> Self {
        Self { next: values.clone(), kept: Some(Arc::new(values)) }
    }
}
