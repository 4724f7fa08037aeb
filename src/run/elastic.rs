//! Runs whose number of nodes changes: `--nnodes MIN:MAX`.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::bail;
use brigade_launch::{Event, LaunchConfig, NodeInfo};
use brigade_report::RunEvent;
use brigade_sorted::SortedSet;

use super::auto::{ElasticArgs, without};
use super::program::Program;
use crate::settings::Settings;

/// How a run with this many nodes, or fewer, is started.
pub(super) struct ElasticRun {
    node: NodeInfo,
    /// The arguments that a number of nodes needs, or why ranks cannot run on this many.
    elastic_args: ElasticArgs,
    /// What must be the same on all nodes.
    configuration: String,
}

impl ElasticRun {
    /// Of a program whose nodes have this many ranks each and start them with these arguments.
    pub fn new(
        program: &Program<'_>,
        node: &NodeInfo,
        nproc: usize,
        args: &[OsString],
    ) -> anyhow::Result<Self> {
        let node = node.clone();
        if let Some(elastic_args) = program.chosen.and_then(|chosen| chosen.elastic_args.clone()) {
            return Ok(Self { node, elastic_args, configuration: without_mesh(&program.config)? });
        }
        let settings = fitted(program.settings);
        let (tokens, costs) = (program.targets_per_sample, program.costs.clone());
        let flags = move |nodes: usize| -> Result<Vec<String>, String> {
            let plan =
                settings.plan(nodes.saturating_mul(nproc), tokens).map_err(|error| error.to_string())?;
            if !costs.is_empty() {
                plan.split(&costs).map_err(|error| error.to_string())?;
            }
            Ok(ALL_RANKS.map(str::to_owned).into())
        };
        let elastic_args = ElasticArgs { args: without(args, &ALL_RANKS[..1], &[]), flags: Arc::new(flags) };
        Ok(Self { node, elastic_args, configuration: program.config.clone() })
    }

    /// Whether ranks can run on as many nodes as there may be, or on fewer.
    pub fn check(&self) -> anyhow::Result<()> {
        let NodeInfo { min_nodes, nnodes, .. } = self.node;
        let refusals = (min_nodes..=nnodes).rev().map(|nodes| (self.elastic_args.flags)(nodes).err());
        let refusals: Option<Vec<String>> = refusals.collect();
        match refusals.and_then(|refusals| refusals.into_iter().next()) {
            Some(reason) => {
                bail!("no number of nodes that --nnodes {min_nodes}:{nnodes} allows can be used: {reason}")
            }
            None => Ok(()),
        }
    }

    /// Says it to the launcher.
    pub fn configure(self, launch: &mut LaunchConfig) {
        launch.args = self.elastic_args.args;
        launch.elastic.node_count_args = self.elastic_args.flags;
        launch.elastic.configuration = self.configuration;
    }
}

/// Data-parallel ranks: as many as there are.
const ALL_RANKS: [&str; 2] = ["--dp", "0"];

/// The settings with as many data-parallel ranks as there are.
fn fitted(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.mesh.dp = 0;
    settings
}

/// The configuration without what is planned anew for each number of nodes.
fn without_mesh(config: &str) -> anyhow::Result<String> {
    let mut table: toml::Table = config.parse()?;
    for section in ["mesh", "zero", "pipeline"] {
        table.remove(section);
    }
    if let Some(compute) = table.get_mut("compute").and_then(toml::Value::as_table_mut) {
        compute.remove("recompute");
    }
    Ok(toml::to_string(&table)?)
}

/// What the launcher's events say of nodes that left or joined.
#[derive(Default)]
pub(super) struct NodeChanges {
    /// Those whose loss was said already.
    left: SortedSet<usize>,
}

impl NodeChanges {
    pub fn of(&mut self, event: &Event) -> Vec<RunEvent> {
        match event {
            Event::NodeLeft { node, host, reason } => {
                self.left.extend(*node);
                vec![RunEvent::NodeLeft { node: *node, host: host.clone(), reason: reason.clone() }]
            }
            Event::Assembled { nodes, before, .. } if !before.is_empty() => {
                let mut changes = Vec::new();
                for (node, host) in before.iter().filter(|old| !nodes.iter().any(|new| new.0 == old.0)) {
                    if !self.left.contains(node) {
                        let (node, host) = (Some(*node), Some(host.clone()));
                        let reason = "it is not among the nodes that start again".into();
                        changes.push(RunEvent::NodeLeft { node, host, reason });
                    }
                }
                for (node, host) in nodes {
                    if self.left.contains(node) || !before.iter().any(|old| old.0 == *node) {
                        changes.push(RunEvent::NodeJoined { node: *node, host: host.clone() });
                    }
                }
                self.left.clear();
                changes
            }
            _ => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn who_left_and_joined_is_told_once() {
        let named = |nodes: &[usize]| nodes.iter().map(|node| (*node, format!("h{node}"))).collect();
        let assembled = |nodes: &[usize], before: &[usize]| Event::Assembled {
            nodes: named(nodes),
            before: named(before),
            nproc: 1,
            args: vec![],
            unused: None,
        };
        let left = |node, reason: &str| Event::NodeLeft { node, host: None, reason: reason.into() };
        let mut changes = NodeChanges::default();
        let mut said =
            |event| changes.of(&event).iter().map(|event| event.of_nodes().unwrap()).collect::<Vec<_>>();
        assert!(said(assembled(&[0, 1, 2], &[])).is_empty(), "the start of the run says it");
        assert_eq!(said(left(Some(1), "it died")), ["node 1 left: it died"]);
        assert!(said(assembled(&[0, 2], &[0, 1, 2])).is_empty());
        assert_eq!(said(assembled(&[0, 1, 2], &[0, 2])), ["node 1 (h1) joined"]);
        assert_eq!(said(left(None, "silence")), ["a node left: silence"]);
        assert_eq!(
            said(assembled(&[0, 1], &[0, 1, 2])),
            ["node 2 (h2) left: it is not among the nodes that start again"]
        );
        said(left(Some(1), "it died"));
        assert_eq!(said(assembled(&[0, 1], &[0, 1])), ["node 1 (h1) joined"], "it was replaced in time");
    }

    #[test]
    fn what_is_planned_anew_is_no_part_of_the_configuration() {
        let text = "[train]\nseed = 1\n[mesh]\ndp = 2\n[compute]\nrecompute = \"all\"\nfused = true\n";
        let kept = without_mesh(text).unwrap();
        assert!(kept.contains("seed") && kept.contains("fused"), "{kept}");
        assert!(!kept.contains("dp") && !kept.contains("recompute"), "{kept}");
    }
}
