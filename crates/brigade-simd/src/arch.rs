//! The processor's SIMD, detected once.

use std::sync::LazyLock;

use pulp::Arch;

static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// What kernels run on.
#[cfg(not(test))]
#[inline]
pub(crate) fn arch() -> Arch {
    *ARCH
}

/// What kernels run on: in tests, what [`tests::on_each`] says.
#[cfg(test)]
pub(crate) fn arch() -> Arch {
    tests::CHOSEN.get().unwrap_or(*ARCH)
}

/// Calls `$function(simd, arguments…)`, which must be `#[inline(always)]`, on the processor's SIMD. Closures inside must be
/// `#[inline(always)]` as well: code that is not inlined is compiled without the processor's instructions.
macro_rules! dispatch {
    ($function:ident $([$($generic:ident: $bound:path),*])? ($($argument:ident: $type:ty),* $(,)?) -> $output:ty) => {{
        struct Call<A>(A);
        impl$(<$($generic: $bound),*>)? pulp::WithSimd for Call<($($type,)*)> {
            type Output = $output;

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, simd: S) -> $output {
                let ($($argument,)*) = self.0;
                $function(simd, $($argument),*)
            }
        }
        $crate::arch::arch().dispatch(Call(($($argument,)*)))
    }};
}
pub(crate) use dispatch;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static CHOSEN: Cell<Option<Arch>> = const { Cell::new(None) };
    }

    /// Runs `test` on each kind of SIMD that this processor has.
    pub(crate) fn on_each(test: impl Fn(Arch)) {
        let mut kinds = vec![Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            kinds.extend(pulp::x86::V3::try_new().map(Arch::V3));
            kinds.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        #[cfg(not(target_arch = "x86_64"))]
        kinds.push(*ARCH);
        for kind in kinds {
            CHOSEN.set(Some(kind));
            test(kind);
        }
        CHOSEN.set(None);
    }
}
