//! Jobs for every system: what their manifests say, where the launcher finds itself in them, what is refused, and how a job is followed.
#![allow(clippy::unwrap_used)]

mod asking;
mod following;
mod hosts;
mod jobs;
mod launcher;
mod manifests;
mod refused;
mod refused_on_kubernetes;
mod schema;
mod scripts;
