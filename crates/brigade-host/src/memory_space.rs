//! Where a backend's tensors are.

use std::ops::Range;

use burn::tensor::{Bytes, Device};

/// Where the elements of any type may begin, in bytes.
const ALIGNMENT: usize = size_of::<u64>();

/// Where a backend's tensors are.
#[derive(Debug, Clone, Copy)]
pub enum MemorySpace {
    /// In host memory: tensors can be views of memory that collectives write.
    Host,
    /// In memory of a device's own.
    Device {
        /// Makes a zeroed buffer of that many bytes on the host that the device copies from quickly: pinned memory, where there is
        /// any. All-gathers use it; other results are copied back from the memory that their values were copied to.
        buffer: fn(&Device, usize) -> Bytes,
    },
}

impl MemorySpace {
    /// A device without pinned host memory.
    pub const DEVICE: Self = Self::Device { buffer: |_, bytes| plain(bytes) };

    pub(crate) fn buffer(self, device: &Device, bytes: usize) -> Bytes {
        match self {
            Self::Host => plain(bytes),
            Self::Device { buffer } => buffer(device, bytes),
        }
    }

    /// A part of host memory, for a tensor of its own. For a device it is a view, which the device copies from fastest; in host
    /// memory it is a copy, which does not keep the rest alive.
    pub(crate) fn part(self, whole: Bytes, part: Range<usize>) -> Bytes {
        if part == (0..whole.len()) {
            return whole;
        }
        match self {
            Self::Host => copied(&whole, part),
            Self::Device { .. } => view(&whole.shared(), part),
        }
    }

    /// As [`part`](Self::part), for consecutive parts of these lengths, up to the end.
    pub(crate) fn parts(self, whole: Vec<u8>, lengths: &[usize]) -> Vec<Bytes> {
        if let [_] = lengths {
            return vec![owned(whole)];
        }
        let whole = owned(whole).shared();
        let mut start = 0;
        let part = |length: &usize| {
            let part = start..start + length;
            start = part.end;
            match self {
                Self::Device { .. } if part.start.is_multiple_of(ALIGNMENT) => view(&whole, part),
                _ => copied(&whole, part),
            }
        };
        lengths.iter().map(part).collect()
    }
}

/// A vector's own memory, if its address is aligned for elements; `Bytes::from_bytes_vec` would copy it in any case.
fn owned(bytes: Vec<u8>) -> Bytes {
    match bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
        true => Bytes::from_elems(bytes),
        false => Bytes::from_bytes_vec(bytes),
    }
}

fn plain(bytes: usize) -> Bytes {
    owned(vec![0; bytes])
}

fn copied(whole: &Bytes, part: Range<usize>) -> Bytes {
    owned(whole[part].to_vec())
}

/// A part of shared memory.
fn view(whole: &Bytes, part: Range<usize>) -> Bytes {
    whole.view(part.start, part.end).unwrap_or_else(|_| copied(whole, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_not_copied() {
        let bytes = vec![7; 1 << 20];
        let place = bytes.as_ptr();
        assert_eq!(owned(bytes).as_ptr(), place);
        assert!(owned(Vec::new()).is_empty());
    }

    #[test]
    fn parts_are_what_they_are_parts_of() {
        let whole: Vec<u8> = (0..40).collect();
        let place = whole.as_ptr();
        for lengths in [vec![40], vec![8, 32], vec![0, 3, 5, 0, 32], vec![24, 16, 0]] {
            for memory_space in [MemorySpace::Host, MemorySpace::DEVICE] {
                let parts = memory_space.parts(whole.clone(), &lengths);
                assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), lengths);
                assert_eq!(parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>(), whole);
            }
        }
        assert!(MemorySpace::Host.parts(Vec::new(), &[]).is_empty());
        assert_eq!(MemorySpace::Host.parts(whole, &[40])[0].as_ptr(), place, "the only part is not copied");
    }

    #[test]
    fn a_device_gets_a_part_from_where_it_lies() {
        let whole = || Bytes::from_bytes_vec((0..40).collect());
        for memory_space in [MemorySpace::Host, MemorySpace::DEVICE] {
            assert_eq!(memory_space.part(whole(), 8..24).to_vec(), (8..24).collect::<Vec<u8>>());
            let (all, is_device) = (whole(), matches!(memory_space, MemorySpace::Device { .. }));
            let place = all.as_ptr();
            assert_eq!(memory_space.part(all, 8..24).as_ptr() == place.wrapping_add(8), is_device);
            let all = whole();
            let place = all.as_ptr();
            assert_eq!(memory_space.part(all, 0..40).as_ptr(), place, "all of it is not copied");
        }
    }
}
