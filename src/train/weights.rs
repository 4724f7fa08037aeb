//! Files of weights.

use std::path::Path;

use brigade_core::{Activation, Engine};
use brigade_models::{WeightsMapping, WeightsWriter};

use crate::run::Session;

impl Session {
    /// Writes a file of those weights that it holds on rank 0, block by block, from the ranks that have them.
    pub(super) fn write_weights<I, O, T>(
        &self,
        engine: &Engine<I, O, T>,
        mapping: &WeightsMapping,
        path: &Path,
        holds: fn(&str) -> bool,
    ) -> anyhow::Result<()>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone,
    {
        // If writing fails, rank 0 must still take part in the collectives.
        let held = || engine.shapes().into_iter().filter(|(name, _)| holds(name));
        let mut writer = (self.rank() == 0).then(|| WeightsWriter::create(path, mapping.parameters(held())));
        engine.collect(0, |tensor| {
            if holds(&tensor.name)
                && let Some(Ok(open)) = &mut writer
                && let Err(error) = open.write(&tensor)
            {
                writer = Some(Err(error));
            }
            Ok(())
        })?;
        if let Some(writer) = writer {
            writer?.finish()?;
        }
        Ok(())
    }
}
