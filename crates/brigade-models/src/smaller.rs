//! Smaller models that stand for one when what its blocks need is measured.

use brigade_core::SmallerModel;
use burn::tensor::{Int, Tensor};

use crate::tokens::{Documents, Tokens};

/// Multiplications of the largest block's forward that are soon done.
const MAX_WORK: f64 = (1u64 << 30) as f64;

/// What sizes may be divided by.
const DIVISORS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// By what the sizes of one of two models are divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Division {
    pub divisor: usize,
    /// The larger divisor of the two.
    larger: usize,
}

impl Division {
    /// A number of things, divided alike in both models: rounded up to what the larger divisor divides.
    pub fn of(self, count: usize) -> usize {
        count.next_multiple_of(self.larger) / self.divisor
    }
}

/// The models that stand for one of these `costs` with a micro-batch; none where it is measured soon itself, or its sizes cannot be divided. `one`: that with sizes divided.
pub(crate) fn stand_ins<I, O, T>(
    rows: &Tokens,
    costs: &[f64],
    one: impl Fn(Division) -> Option<SmallerModel<I, O, T>>,
) -> Option<[SmallerModel<I, O, T>; 2]> {
    let tokens = rows.ids.dims().iter().product::<usize>() as f64;
    let work = tokens * costs.iter().copied().fold(0.0, f64::max);
    if work <= MAX_WORK {
        return None;
    }
    let takes_long = |divisor: &&usize| work / (divisor.pow(3) as f64) > MAX_WORK;
    let (too_small, enough) = DIVISORS.split_at(DIVISORS.iter().take_while(takes_long).count());
    let mut divisors = enough.first().into_iter().chain(too_small.iter().rev());
    divisors.find_map(|&divisor| {
        let of = |divisor, larger| one(Division { divisor, larger });
        Some([of(divisor, 2 * divisor)?, of(2 * divisor, 2 * divisor)?])
    })
}

/// As many rows of the first token for a smaller model, of one document each where they have any.
pub(crate) fn divided_rows(rows: &Tokens, divisor: usize) -> Tokens {
    let (device, [samples, length]) = (rows.ids.device(), rows.ids.dims());
    let shape = [samples, length.div_ceil(divisor)];
    let bounds = |_: &Documents| -> Documents {
        let ends = Tensor::<3, Int>::full([samples, shape[1], 1], shape[1] as i64, &device);
        Tensor::cat(vec![ends.zeros_like(), ends], 2)
    };
    Tokens {
        ids: Tensor::zeros(shape, &device),
        documents: rows.documents.as_ref().map(bounds),
        types: rows.types.as_ref().map(|_| Tensor::zeros(shape, &device)),
    }
}
