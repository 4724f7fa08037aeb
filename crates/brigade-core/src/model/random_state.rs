//! Burn's random generator as a function of the place in training.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;

/// Held while something draws from Burn's generator, which is one per process, so that ranks that are threads of one process do
/// not draw from each other's seeds. So the forward of one of them must not wait for what another launches only after its own: ranks
/// with NCCL are processes of their own.
static GENERATOR: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// Seeds the random generator of a device and runs `draw`, while no other thread of the process draws in this way.
///
/// `draw` must not wait for another thread that calls this function, or it waits forever.
///
/// Burn has one generator per process. Brigade seeds it before each forward pass of each block by
/// [`ForwardContext::random_seed`](crate::ForwardContext::random_seed), and before each parameter gets its initial value; a plain
/// Burn program that does the same has the same dropout masks and the same initial values.
///
/// ```
/// use brigade_core::with_seed;
/// use burn::tensor::{Device, Distribution, Tensor};
///
/// let device = Device::default();
/// let draw = || Tensor::<1>::random([4], Distribution::Default, &device).into_data();
/// assert_eq!(with_seed(&device, 7, draw), with_seed(&device, 7, draw));
/// ```
pub fn with_seed<R>(device: &Device, seed: u64, draw: impl FnOnce() -> R) -> R {
    let _held = Held::new();
    device.seed(seed);
    draw()
}

/// The lock, unless this thread has it already.
struct Held(Option<MutexGuard<'static, ()>>);

impl Held {
    fn new() -> Self {
        let guard = match IS_HELD.get() {
            true => None,
            false => Some(GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        IS_HELD.set(true);
        Self(guard)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.is_some() {
            IS_HELD.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Distribution, Tensor};

    #[test]
    fn threads_draw_what_they_would_draw_alone() {
        let draw = |seed: u64| {
            let device = Device::default();
            with_seed(&device, seed, || {
                let one = |_| Tensor::<1>::random([8], Distribution::Default, &device);
                let all = Tensor::cat((0..8).map(one).collect(), 0);
                all.try_into_vec_as::<f32>().unwrap()
            })
        };
        let alone: Vec<_> = (0..4).map(draw).collect();
        for _ in 0..20 {
            let threads: Vec<_> = (0..4).map(|seed| std::thread::spawn(move || draw(seed))).collect();
            let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(found, alone);
        }
    }

    #[test]
    fn a_panic_and_a_call_within_leave_the_generator_free() {
        let device = Device::default();
        let within = with_seed(&device, 1, || with_seed(&device, 2, || 3));
        assert_eq!(within, 3);
        let caught = std::panic::catch_unwind(|| with_seed(&Device::default(), 1, || panic!("drawn")));
        assert!(caught.is_err() && !IS_HELD.get());
        assert_eq!(std::thread::spawn(|| with_seed(&Device::default(), 1, || 4)).join().unwrap(), 4);
    }
}
