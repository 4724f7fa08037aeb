//! Whether operations are fused at all.

use std::cell::Cell;

thread_local! {
    static IS_FUSED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations that this thread calls are fused where they can be, as they are at first, or all are Burn's own.
pub fn set_fused(fused: bool) {
    IS_FUSED.set(fused);
}

/// What [`set_fused`] said.
pub(crate) fn is_fusion_enabled() -> bool {
    IS_FUSED.get()
}
