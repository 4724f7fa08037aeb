//! The pages of the book and the README, so that `cargo test --doc` compiles and runs the code in them.

macro_rules! pages {
    ($($name:ident: $file:literal,)*) => {
        $(#[doc = include_str!($file)] pub mod $name {})*

        #[cfg(test)]
        const PAGES: &[&str] = &[$($file),*];
    };
}

pages! {
    benchmarks: "src/benchmarks.md",
    benchmarks_checkpoints: "src/benchmarks-checkpoints.md",
    benchmarks_diagnosis: "src/benchmarks-diagnosis.md",
    benchmarks_network: "src/benchmarks-network.md",
    benchmarks_plans: "src/benchmarks-plans.md",
    benchmarks_spread: "src/benchmarks-spread.md",
    checkpoints_and_failures: "src/checkpoints-and-failures.md",
    clusters: "src/clusters.md",
    coming_from_pytorch: "src/coming-from-pytorch.md",
    communication: "src/communication.md",
    data: "src/data.md",
    failures: "src/failures.md",
    five_questions: "src/five-questions.md",
    getting_started: "src/getting-started.md",
    glossary: "src/glossary.md",
    gpu_speed: "src/gpu-speed.md",
    gpus: "src/gpus.md",
    how_it_works: "src/how-it-works.md",
    inside_a_step: "src/inside-a-step.md",
    metrics: "src/metrics.md",
    models: "src/models.md",
    moving_from_burn: "src/moving-from-burn.md",
    own_loop: "src/own-loop.md",
    performance: "src/performance.md",
    planner: "src/planner.md",
    readme: "../../README.md",
    reports: "src/reports.md",
    same_bits: "src/same-bits.md",
    scaling: "src/scaling.md",
    slow_networks: "src/slow-networks.md",
    your_own_model: "src/your-own-model.md",
}

#[test]
fn every_page_is_here() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_page = name.ends_with(".md") && !["SUMMARY.md", "reference.md"].contains(&name.as_str());
        assert!(
            !is_page || PAGES.contains(&format!("src/{name}").as_str()),
            "code.rs does not name src/{name}"
        );
    }
}
