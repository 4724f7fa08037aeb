//! Files of weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use brigade_core::UntypedEngine;
use brigade_models::{WeightsError, WeightsFiles, WeightsFormat, WeightsMapping, WeightsWriter};
use brigade_sorted::SortedSet;

use crate::run::Session;
use crate::world::all_gather_text;

impl Session {
    /// Writes those weights that a file holds, block by block. One file is written by rank 0. Several are written by ranks that hold what is in them,
    /// where these see the folder. All ranks call it. Gives what is to be opened: the file, or the index of several.
    pub(super) fn write_weights(
        &self,
        engine: &UntypedEngine,
        mapping: &WeightsMapping,
        path: &Path,
        holds: fn(&str) -> bool,
        format: WeightsFormat,
    ) -> anyhow::Result<PathBuf> {
        let held = engine.shapes().into_iter().filter(|(name, _)| holds(name));
        let files = Arc::new(WeightsFiles::new(path, mapping.parameters(held), format)?);
        let writers = self.writers(engine, &files)?;
        let roots = |name: &str| -> SortedSet<usize> {
            files.files_of(name).into_iter().map(|file| writers[file]).collect()
        };
        let is_writer = writers.contains(&self.rank());
        let mut writer =
            is_writer.then(|| WeightsWriter::open(files.clone(), |file| writers[file] == self.rank()));
        // If writing fails, the rank must still take part in the collectives.
        engine.collect_on(roots, |tensor| {
            if holds(&tensor.name)
                && let Some(Ok(open)) = &mut writer
                && let Err(error) = open.write(&tensor)
            {
                writer = Some(Err(error));
            }
            Ok(())
        })?;
        if writers.iter().all(|rank| *rank == 0) {
            if let Some(writer) = writer {
                writer?.finish()?;
                files.remove_earlier()?;
            }
            return Ok(files.main());
        }
        // No file gets its name before all are written, and the index is written once all have theirs.
        let writer = self.agreed(writer.transpose())?;
        self.agreed(if self.rank() == 0 { files.begin() } else { Ok(()) })?;
        self.agreed(writer.map_or(Ok(()), WeightsWriter::commit))?;
        let end = || files.complete().and_then(|()| files.remove_earlier());
        self.agreed(if self.rank() == 0 { end() } else { Ok(()) })?;
        Ok(files.main())
    }

    /// The rank that writes each file.
    fn writers(&self, engine: &UntypedEngine, files: &WeightsFiles) -> anyhow::Result<Vec<usize>> {
        if files.count() == 1 || self.world_size() == 1 {
            return Ok(vec![0; files.count()]);
        }
        let sees = self.ranks_that_see_the_folder()?;
        let writer = |file: usize| {
            // Of a file with blocks of two stages, the stage with more of its values.
            let mut values: Vec<(Vec<usize>, usize)> = Vec::new();
            for (parameter, count) in files.parameters_of(file) {
                let holders = engine.holders(parameter);
                match values.iter_mut().find(|(ranks, _)| *ranks == holders) {
                    Some((_, sum)) => *sum += count,
                    None => values.push((holders, count)),
                }
            }
            let most =
                values.into_iter().max_by_key(|(ranks, count)| (*count, std::cmp::Reverse(ranks.clone())));
            let holders = most.map(|(ranks, _)| ranks).unwrap_or_default();
            let able: Vec<usize> = holders.into_iter().filter(|rank| sees[*rank]).collect();
            able.get(file % able.len().max(1)).copied().unwrap_or(0)
        };
        Ok((0..files.count()).map(writer).collect())
    }

    /// Which ranks see the folder that rank 0 writes results to: those of its machine, and others where the folder is shared.
    fn ranks_that_see_the_folder(&self) -> anyhow::Result<Vec<bool>> {
        // Where nothing is random, the number of the process is as good.
        let number = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
        let own = format!(".probe-{number:016x}");
        let is_there = self.rank() == 0 && std::fs::write(self.out.join(&own), "").is_ok();
        let name = if is_there { own } else { String::new() };
        let name = all_gather_text(self.group(), &name)?.swap_remove(0);
        let is_seen = !name.is_empty() && self.out.join(&name).exists();
        let mut sees = vec![0u8; self.world_size()];
        sees[self.rank()] = u8::from(is_seen);
        let gathered = self.group().all_gather_in_place(&mut sees);
        if is_there {
            drop(std::fs::remove_file(self.out.join(&name)));
        }
        gathered?;
        Ok(sees.into_iter().map(|sees| sees == 1).collect())
    }

    /// What a rank has done, if all ranks have done theirs.
    fn agreed<R>(&self, done: Result<R, WeightsError>) -> anyhow::Result<R> {
        let problem = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let all = all_gather_text(self.group(), &problem)?;
        let failed = all.iter().enumerate().find(|(_, problem)| !problem.is_empty());
        match (done, failed) {
            (Ok(done), None) => Ok(done),
            (Ok(_), Some((rank, problem))) => {
                bail!("rank {rank} cannot write its part of the weights: {problem}")
            }
            (Err(error), _) => Err(error).context("cannot write this rank's part of the weights"),
        }
    }
}
