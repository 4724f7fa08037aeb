//! Tables of vectors.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{Int, Tensor};
use burn_flex::FlexTensor;

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, is_on_host, rows, values};

/// The rows of a table with these numbers: `weight`: `[rows, width]`, `indices`: `[batch, positions]`, the result: `[batch, positions, width]`.
///
/// On the CPU, and on devices with kernels, the table's gradient is one pass over the result's: rows that are not looked up are zeros, sums are fp32, and their order is
/// that of `indices`; elsewhere, Burn's operations.
///
/// # Panics
/// On the CPU, if an index is not that of a row.
pub fn embedding(weight: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
    let tensor = weight.clone().into_dispatch();
    if is_on_host(&tensor) {
        let [table, _] = weight.dims();
        let row = |index: i64| {
            let row = usize::try_from(index).ok().filter(|row| *row < table);
            row.unwrap_or_else(|| panic!("`indices` has {index}, which is none of {table} rows"))
        };
        let dims = indices.dims();
        let operation = Embedding { indices: indices.clone().into_data().iter().map(row).collect(), dims };
        if let Some(output) = operation.fused(&tensor) {
            return Tensor::from_dispatch(output);
        }
    }
    #[cfg(feature = "cube")]
    {
        let operation = crate::cube::Embedding { indices: indices.clone(), shape: weight.dims() };
        if crate::cube::Embedding::fits(&tensor)
            && let Some((output, ())) = crate::cube::apply(operation, [&tensor])
        {
            return Tensor::from_dispatch(output);
        }
    }
    burn::tensor::module::embedding(weight, indices)
}

/// Its input is the table.
#[derive(Debug)]
struct Embedding {
    indices: Arc<[usize]>,
    /// Of the indices.
    dims: [usize; 2],
}

impl Embedding {
    /// The operation where there is one for this table. It is compiled here, not in each crate with such a layer.
    fn fused(self, table: &DispatchTensor) -> Option<DispatchTensor> {
        apply(self, [table]).map(|(output, ())| output)
    }
}

impl FusedOperation<1> for Embedding {
    /// The table's shape.
    type Saved = [usize; 2];
    type Extra = ();

    fn forward<T: Number>(
        &self,
        [table]: [FlexTensor; 1],
        _: [bool; 1],
    ) -> (FlexTensor, Option<[usize; 2]>, ()) {
        let table = contiguous(table);
        let shape @ [_, width] = rows(&table);
        let mut found = Buffer::<T>::new(self.indices.len() * width);
        for (&row, found) in self.indices.iter().zip(found.chunks_exact_mut(width.max(1))) {
            found.copy_from_slice(&values::<T>(&table)[row * width..][..width]);
        }
        let [batch, positions] = self.dims;
        (found.into_tensor([batch, positions, width]), Some(shape), ())
    }

    fn backward<T: Number>(
        self,
        shape: [usize; 2],
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let [table, width] = shape;
        let gradient = contiguous(gradient);
        let slopes = |place: usize| &values::<T>(&gradient)[place * width..][..width];
        let mut sums = Buffer::<T>::zeros(table * width);
        let mut places: Vec<usize> = (0..self.indices.len()).collect();
        // It keeps the order of places that have the same row.
        places.sort_by_key(|place| self.indices[*place]);
        let mut sum = vec![0.0_f32; width];
        for places in places.chunk_by(|a, b| self.indices[*a] == self.indices[*b]) {
            sum.fill(0.0);
            for place in places {
                brigade_simd::add(slopes(*place), &mut sum);
            }
            let row = self.indices[places[0]];
            brigade_simd::convert(&sum, &mut sums[row * width..][..width]);
        }
        [Some(sums.into_tensor(shape))]
    }
}
