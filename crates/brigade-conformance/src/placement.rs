//! Where tensors are, and who else has them.

use brigade_core::Collectives;
use burn::tensor::FloatDType;

use crate::Suite;
use crate::values::{contribution, given, is_sum, same, tensor, values};

/// An input whose clone or view is still alive keeps its values: before, while and after the operation runs.
pub fn inputs_keep_their_values(suite: &Suite, ranks: &dyn Collectives) {
    let (rank, size) = (ranks.rank(), ranks.size());
    for dtype in suite.floats.iter().copied() {
        let length = 1000 * size;
        let exact = given(rank, length, dtype);
        let kept = contribution(suite, rank, length, dtype);
        let view = kept.clone().slice(500..600);
        for operation in 0..4 {
            let pending = match operation {
                0 => ranks.all_reduce(kept.clone()),
                1 => ranks.reduce_scatter(kept.clone()),
                2 => ranks.all_gather(kept.clone()),
                _ => ranks.broadcast(kept.clone(), size - 1),
            };
            same(&values(kept.clone(), dtype), &exact, "the input while the operation runs");
            let result = pending.wait().unwrap();
            same(&values(view.clone(), dtype), &exact[500..600], "a view of the input");
            // Changes to the result do not change the input either.
            drop(result.mul_scalar(2.0));
            same(&values(kept.clone(), dtype), &exact, "the input after the operation");
        }
        // The last handle of an input may be given away, and the view still shows what it showed.
        let sum = ranks.all_reduce(kept).wait().unwrap();
        is_sum(suite, ranks, &values(sum, dtype), 0..length, length, dtype);
        same(&values(view, dtype), &exact[500..600], "a view of an input that was given away");
        // This one has no other handle, and is computed by work that may still be under way.
        let owned = contribution(suite, rank, length, dtype).mul_scalar(1.0);
        let sum = ranks.all_reduce(owned).wait().unwrap();
        is_sum(suite, ranks, &values(sum, dtype), 0..length, length, dtype);
    }
}

/// Results are tensors of the device that their inputs are on, and can be used there together with others.
pub fn results_stay_on_the_device(suite: &Suite, ranks: &dyn Collectives) {
    let size = ranks.size();
    let ones = || tensor(&vec![1.0; 4 * size], FloatDType::F32, &suite.device);
    let results = [
        ranks.all_reduce(ones()),
        ranks.reduce_scatter(ones()),
        ranks.all_gather(ones()),
        ranks.broadcast(ones(), 0),
    ];
    for (result, value) in results.into_iter().zip([size, size, 1, 1]) {
        let result = result.wait().unwrap();
        assert_eq!(result.device(), suite.device);
        // Comparing devices would not show it.
        assert_eq!(result.device().is_autodiff(), suite.device.is_autodiff(), "autodiff of the result");
        let length = result.dims()[0];
        let together = result + tensor(&vec![0.5; length], FloatDType::F32, &suite.device);
        same(&values(together, FloatDType::F32), &vec![value as f32 + 0.5; length], "result + 1/2");
    }
}

/// A buffer that can be emptied and filled again shows its values in every view. Where there is no such buffer, nothing is
/// checked.
pub fn buffers_are_filled_under_their_views(suite: &Suite, ranks: &dyn Collectives) {
    let (dtype, size) = (FloatDType::F32, ranks.size());
    let all =
        |salt: usize| (0..size).flat_map(move |rank| given(rank + salt, 2048, dtype)).collect::<Vec<_>>();
    let Some(mut buffer) = ranks.unsharded_buffer(2048, dtype, &suite.device) else { return };
    let view = buffer.tensor().slice(2000..2048 * size - 10);
    for salt in [0, 3, 6] {
        let shard = contribution(suite, ranks.rank() + salt, 2048, dtype);
        // SAFETY: the buffer's tensors are this function's, and it reads them only when the buffer is filled.
        let filled = unsafe { buffer.all_gather(shard) }.wait().unwrap();
        same(&values(filled.tensor(), dtype), &all(salt), "the buffer");
        same(&values(view.clone(), dtype), &all(salt)[2000..2048 * size - 10], "a view of the buffer");
        // SAFETY: as above.
        buffer = unsafe { filled.reshard() };
    }
    // SAFETY: as above.
    let wrong = unsafe { buffer.all_gather(contribution(suite, 0, 4000, dtype)) };
    let wrong = wrong.wait().err().unwrap().to_string();
    assert!(wrong.contains("do not fill"), "{wrong}");
}
