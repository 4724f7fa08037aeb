//! A memory pool that reuses memory as soon as nothing on the host owns it, as cubecl's do.

use std::sync::{Arc, Mutex};

use super::compute_stream::ComputeStream;

/// The content of newly allocated memory.
pub const POISON: i64 = -0x5a5a_5a5a_5a5a;

/// Free memory of one GPU. The last that was freed is reused first, so that a missing order between streams shows.
#[derive(Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Block>>>);

/// An allocation. It is never returned to the system, since a delayed stream may still use it.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    elements: usize,
}

/// Memory that the host owns. What streams run does not own it.
pub struct Memory {
    block: Block,
    pool: Pool,
}

/// Shared ownership of memory.
pub type Buffer = Arc<Memory>;

impl Pool {
    /// Allocates memory for `elements` numbers, which the compute stream fills with [`POISON`].
    pub fn allocate(&self, elements: usize, compute: &ComputeStream) -> Buffer {
        let mut free = self.0.lock().unwrap();
        let found = free.iter().rposition(|block| block.elements == elements);
        let block = found.map_or_else(
            || {
                let memory = Box::leak(vec![POISON; elements].into_boxed_slice());
                Block { address: memory.as_mut_ptr() as u64, elements }
            },
            |at| free.remove(at),
        );
        drop(free);
        let buffer = Arc::new(Memory { block, pool: self.clone() });
        let place = buffer.place();
        compute.run(move || place.fill(|_| POISON));
        buffer
    }
}

impl Memory {
    pub fn place(&self) -> Address {
        Address(self.block)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.pool.0.lock().unwrap().push(self.block);
    }
}

/// The address and size of memory, for what runs on a stream.
#[derive(Clone, Copy)]
pub struct Address(Block);

impl Address {
    pub fn address(self) -> u64 {
        self.0.address
    }

    pub fn elements(self) -> usize {
        self.0.elements
    }

    pub fn bytes(self) -> usize {
        self.0.elements * size_of::<i64>()
    }

    pub fn fill(self, value: impl Fn(usize) -> i64) {
        for at in 0..self.0.elements {
            // SAFETY: allocations of this size are never freed. That nothing else writes to them is what is tested.
            unsafe { (self.0.address as *mut i64).add(at).write_volatile(value(at)) };
        }
    }

    pub fn read(self) -> Vec<i64> {
        // SAFETY: as above.
        (0..self.0.elements)
            .map(|at| unsafe { (self.0.address as *const i64).add(at).read_volatile() })
            .collect()
    }
}
