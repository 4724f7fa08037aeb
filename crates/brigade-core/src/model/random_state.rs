//! Burn's random generator as a function of the place in training.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use brigade_random::keyed_seed;
use burn::tensor::Device;

/// Held while something draws from Burn's generator, which is one per process, so that ranks that are threads of one process do
/// not draw from each other's seeds. So the forward of one of them must not wait for what another launches only after its own, but
/// [without the generator](without_generator): ranks with NCCL are processes of their own.
static GENERATOR: Mutex<()> = Mutex::new(());

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// What this thread draws with.
struct Held {
    lock: MutexGuard<'static, ()>,
    device: Device,
    seed: u64,
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
    let _drawing = Drawing::begin(device, seed);
    draw()
}

/// Waits for other threads that may draw, and then continues drawing from a state that follows from the seed before.
pub(crate) fn without_generator<R>(wait: impl FnOnce() -> R) -> R {
    let Some(Held { lock, device, seed }) = HELD.take() else { return wait() };
    drop(lock);
    let result = wait();
    hold(&device, keyed_seed(seed, "after a wait"));
    result
}

fn hold(device: &Device, seed: u64) {
    let held = HELD.take();
    let lock = match held {
        Some(held) => held.lock,
        None => GENERATOR.lock().unwrap_or_else(PoisonError::into_inner),
    };
    device.seed(seed);
    HELD.set(Some(Held { lock, device: device.clone(), seed }));
}

/// Holds the lock until it is dropped, or until a call around it ends.
struct Drawing {
    is_outermost: bool,
}

impl Drawing {
    fn begin(device: &Device, seed: u64) -> Self {
        let is_outermost = HELD.with_borrow(Option::is_none);
        hold(device, seed);
        Self { is_outermost }
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        if self.is_outermost {
            HELD.set(None);
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
        assert!(caught.is_err() && HELD.with_borrow(Option::is_none));
        assert_eq!(std::thread::spawn(|| with_seed(&Device::default(), 1, || 4)).join().unwrap(), 4);
    }

    /// Each of two threads waits within its drawing for the other to begin.
    #[test]
    fn a_thread_that_waits_lets_others_draw_and_goes_on_as_alone() {
        let draw = |seed: u64, wait: &dyn Fn()| {
            let device = Device::default();
            with_seed(&device, seed, || {
                let one = || Tensor::<1>::random([8], Distribution::Default, &device);
                let before = one();
                without_generator(wait);
                let all = Tensor::cat(vec![before, one()], 0);
                all.try_into_vec_as::<f32>().unwrap()
            })
        };
        let alone: Vec<_> = (0..2).map(|seed| draw(seed, &|| {})).collect();
        assert_ne!(alone[0][..8], alone[0][8..]);
        let begun = &std::sync::Barrier::new(2);
        let found: Vec<_> = std::thread::scope(|scope| {
            let wait = || {
                begun.wait();
            };
            let start = |seed| scope.spawn(move || draw(seed, &wait));
            let threads: Vec<_> = (0..2).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found, alone);
    }
}
