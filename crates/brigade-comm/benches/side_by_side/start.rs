//! Times the start of a world: processes of this host, from the first one's start until all have reduced something together.
//!
//!     cargo bench -p brigade-comm --bench start -- --transport shm|tcp --ranks 256
//!
//! Rank 0 prints one JSON line: seconds from the start of the first process until rank 0's world was complete, until its first
//! barrier was over, and until its first all-reduce was; and the files that rank 0 had open then.

mod ranks;

use std::process::ExitCode;
use std::time::SystemTime;

use brigade_comm::{ReduceOp, Result, World};

use ranks::Arguments;

fn main() -> ExitCode {
    match Arguments::read("tcp", &["shm", "tcp"], 256) {
        Ok(arguments) => {
            arguments.on_processes(|world, started| measure(world, started, &arguments.transport))
        }
        Err(code) => code,
    }
}

/// The world has just been joined.
fn measure(world: &World, started: SystemTime, transport: &str) -> Result<()> {
    let since_start = || started.elapsed().unwrap_or_default().as_secs_f64();
    let joined = since_start();
    let group = world.group();
    group.barrier()?;
    let barrier = since_start();
    group.all_reduce_in_place(&mut [1.0f32; 1 << 14], ReduceOp::Sum)?;
    let reduced = since_start();
    if group.rank() == 0 {
        let (ranks, files) = (group.size(), std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count));
        println!(
            r#"{{"transport": "{transport}", "ranks": {ranks}, "joined_s": {joined:.2}, "barrier_s": {barrier:.2}, "all_reduce_s": {reduced:.2}, "open_files": {files}}}"#
        );
    }
    Ok(())
}
