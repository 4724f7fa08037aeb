//! Derive macros for the traits of `brigade-core`, which exports them beside the traits, as `brigade` does.

mod activation;

use proc_macro::TokenStream;

/// Implements `Activation` for a struct whose fields all are activations: tensors, tuples of them, or such structs. Type parameters
/// must be activations, too.
///
/// Programs that depend on `brigade-core` alone say so by `#[activation(crate = "brigade_core")]`.
#[proc_macro_derive(Activation, attributes(activation))]
pub fn derive_activation(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    activation::expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}
