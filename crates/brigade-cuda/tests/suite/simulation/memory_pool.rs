//! Memory that is handed out again as soon as nothing on the host holds it, as cubecl's pools do.

use std::sync::{Arc, Mutex};

use super::compute_stream::ComputeStream;

/// What memory holds when it is handed out.
pub const POISON: i64 = -0x5a5a_5a5a_5a5a;

/// Memory of one GPU. The last that came back is handed out first, so that a use that is not ordered shows.
#[derive(Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Block>>>);

/// An allocation, which is never given back: a stream that is late finds it.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    elements: usize,
}

/// A piece of memory, held by the host. What is in streams does not hold it.
pub struct Memory {
    block: Block,
    pool: Pool,
}

/// A handle of memory.
pub type Buffer = Arc<Memory>;

impl Pool {
    /// Memory of `elements` numbers, whose content the computing stream spoils.
    pub fn allocate(&self, elements: usize, computing: &ComputeStream) -> Buffer {
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
        computing.run(move || place.fill(|_| POISON));
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

/// Where memory is, for what runs in a stream.
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
            // SAFETY: allocations of this size are never given back. That nothing else writes there is what is tested.
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
