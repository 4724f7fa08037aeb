//! Several datasets as one, by weights.

use brigade_core::Batch;
use brigade_data::SourceShare;
use burn::tensor::Device;

use super::Dataset;

/// Datasets of one kind, of which each has its share of the samples that a run draws. An epoch has as many samples as all of them together, and
/// each in proportion to its weight: a smaller one is repeated, and a larger one continues in the next epoch
/// ([`Sampler`](brigade_data::Sampler)). Samples are shuffled across all of them. Without weights (to validate, say) it is one
/// dataset after the other, each as often as it is. Weights of a `Mixed` inside of another one do not count: it is a dataset with one weight there.
///
/// ```
/// use brigade::{Batch, Dataset, Mixed};
/// use burn::tensor::{Device, Tensor};
///
/// struct Numbers(Vec<f32>);
///
/// impl Dataset for Numbers {
///     type Item = f32;
///     type Input = Tensor<2>;
///     type Target = Tensor<2>;
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///
///     fn get(&self, index: usize) -> anyhow::Result<f32> {
///         Ok(self.0[index])
///     }
///
///     fn batch(&self, items: Vec<f32>, device: &Device) -> Batch<Tensor<2>, Tensor<2>> {
///         let x = Tensor::<1>::from_floats(&items[..], device).reshape([-1, 1]);
///         Batch::new(x.clone(), x, items.len())
///     }
/// }
///
/// // Half of the samples of a run come from each.
/// let (large, small) = (Numbers(vec![0.5; 1000]), Numbers(vec![2.0; 10]));
/// let mixed = Mixed::new([(large, 1.0), (small, 1.0)]);
/// assert_eq!(mixed.len(), 1010);
/// assert_eq!(mixed.get(1000)?, 2.0);
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct Mixed<D> {
    parts: Vec<(D, f64)>,
}

impl<D: Dataset> Mixed<D> {
    /// These datasets, at least one, with their weights, of which each is above 0.
    pub fn new(parts: impl IntoIterator<Item = (D, f64)>) -> Self {
        Self { parts: parts.into_iter().collect() }
    }

    fn first(&self) -> Option<&D> {
        self.parts.first().map(|(data, _)| data)
    }
}

impl<D: Dataset> Dataset for Mixed<D> {
    type Item = D::Item;
    type Input = D::Input;
    type Target = D::Target;

    fn len(&self) -> usize {
        self.parts.iter().map(|(data, _)| data.len()).sum()
    }

    fn get(&self, index: usize) -> anyhow::Result<D::Item> {
        if self.parts.len() > 1 && self.collates_only_its_own() {
            anyhow::bail!(
                "a micro-batch has samples of several datasets here (`Mixed`), and one of these datasets collates its own alone, as `samples` does with a function that captures data; implement `Dataset`, whose `get` reads a sample and whose `batch` collates any"
            );
        }
        let mut within = index;
        for (data, _) in &self.parts {
            if within < data.len() {
                return data.get(within);
            }
            within -= data.len();
        }
        anyhow::bail!("there is no sample {index}: there are {}", self.len())
    }

    /// As the first of them does it.
    fn batch(&self, items: Vec<D::Item>, device: &Device) -> Batch<D::Input, D::Target> {
        self.parts[0].0.batch(items, device)
    }

    /// If one of them does, which is refused beside others.
    fn collates_only_its_own(&self) -> bool {
        self.parts.iter().any(|(data, _)| data.collates_only_its_own())
    }

    fn targets_per_sample(&self) -> usize {
        self.first().map_or(1, D::targets_per_sample)
    }

    fn unit(&self) -> &str {
        self.first().map_or("samples", D::unit)
    }

    fn shares(&self) -> Vec<SourceShare> {
        self.parts.iter().map(|(data, weight)| SourceShare { len: data.len(), weight: *weight }).collect()
    }
}
