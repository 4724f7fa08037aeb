//! `#[derive(Activation)]`: a struct's tensors, field by field.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, LitStr, Path, Result, parse_quote};

pub(crate) fn expand(mut input: DeriveInput) -> Result<TokenStream> {
    let brigade = crate_path(&input)?;
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#brigade::Activation));
    }
    let (name, fields) = (&input.ident, fields(&input)?);
    let types = || fields.iter().map(|field| &field.ty);
    let members: Vec<_> = fields.members().collect();
    let into_parts = members.iter().zip(types()).map(|(member, ty)| {
        quote_spanned!(ty.span()=> <#ty as #brigade::Activation>::into_parts(self.#member, parts);)
    });
    let from_parts = members.iter().zip(types()).map(
        |(member, ty)| quote_spanned!(ty.span()=> #member: <#ty as #brigade::Activation>::from_parts(parts)?),
    );
    let descriptions =
        types().map(|ty| quote_spanned!(ty.span()=> <#ty as #brigade::Activation>::describe()));
    let format = LitStr::new(&format_of(&name.to_string(), fields), name.span());
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        #[allow(unused_qualifications)]
        impl #impl_generics #brigade::Activation for #name #type_generics #where_clause {
            fn into_parts(self, parts: &mut ::std::vec::Vec<#brigade::Part>) {
                #(#into_parts)*
            }

            fn from_parts(parts: &mut ::std::vec::IntoIter<#brigade::Part>) -> ::core::option::Option<Self> {
                ::core::option::Option::Some(Self { #(#from_parts),* })
            }

            fn describe() -> ::std::string::String {
                ::std::format!(#format, #(#descriptions),*)
            }
        }
    })
}

/// Where the trait is: in `brigade`, unless an attribute says something else.
fn crate_path(input: &DeriveInput) -> Result<Path> {
    let mut path = parse_quote!(::brigade);
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("activation")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(
                    meta.error("the only option is `crate = \"…\"`, the path of the crate with `Activation`")
                );
            }
            path = meta.value()?.parse::<LitStr>()?.parse()?;
            Ok(())
        })?;
    }
    Ok(path)
}

/// The fields of a struct that can be an activation.
fn fields(input: &DeriveInput) -> Result<&Fields> {
    let name = &input.ident;
    let refused = |why: String| Err(Error::new(name.span(), why));
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(_) => {
            return refused(format!(
                "`Activation` can only be derived for structs, but `{name}` is an enum: which tensors flow to the next block must not depend on a value; make it a struct, or implement \
                the trait"
            ));
        }
        Data::Union(_) => {
            return refused(format!("`Activation` can only be derived for structs, but `{name}` is a union"));
        }
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let lifetime = &lifetime.lifetime;
        return refused(format!(
            "an activation owns its tensors, so `{name}` cannot have the lifetime `{lifetime}`"
        ));
    }
    if fields.is_empty() {
        return refused(format!("an activation holds at least one tensor, but `{name}` has no fields"));
    }
    Ok(fields)
}

/// The format string of the description, with a place for each field.
fn format_of(name: &str, fields: &Fields) -> String {
    let places: Vec<_> = fields
        .iter()
        .map(|field| field.ident.as_ref().map_or_else(|| "{}".to_owned(), |name| format!("{name}: {{}}")))
        .collect();
    let places = places.join(", ");
    match fields {
        Fields::Named(_) => format!("{name} {{{{ {places} }}}}"),
        _ => format!("{name}({places})"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn refused(input: DeriveInput) -> String {
        expand(input).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_struct_of_tensors_is_refused_by_name() {
        let message = refused(parse_quote! { enum Either { Left(Tensor<2>), Right(Tensor<3>) } });
        assert!(
            message.starts_with("`Activation` can only be derived for structs, but `Either` is an enum: "),
            "{message}"
        );
        let message = refused(parse_quote! { union Either { left: u32, right: f32 } });
        assert_eq!(message, "`Activation` can only be derived for structs, but `Either` is a union");
        for empty in [
            parse_quote! { struct Nothing; },
            parse_quote! { struct Nothing {} },
            parse_quote! { struct Nothing(); },
        ] {
            assert_eq!(
                refused(empty),
                "an activation holds at least one tensor, but `Nothing` has no fields"
            );
        }
        let message = refused(parse_quote! { struct Borrowed<'a> { hidden: &'a Tensor<2> } });
        assert_eq!(message, "an activation owns its tensors, so `Borrowed` cannot have the lifetime `'a`");
    }

    #[test]
    fn the_trait_is_in_the_facade_or_where_it_is_said_to_be() {
        let expanded = |input: DeriveInput| expand(input).unwrap().to_string();
        let plain = expanded(parse_quote! { struct Encoded { hidden: Tensor<2> } });
        assert!(plain.contains("impl :: brigade :: Activation for Encoded"), "{plain}");
        let other = expanded(
            parse_quote! { #[activation(crate = "brigade_core")] struct Encoded { hidden: Tensor<2> } },
        );
        assert!(other.contains("impl brigade_core :: Activation for Encoded"), "{other}");
        let wrong = refused(
            parse_quote! { #[activation(krate = "brigade_core")] struct Encoded { hidden: Tensor<2> } },
        );
        assert!(wrong.starts_with("the only option is `crate"), "{wrong}");
    }
}
