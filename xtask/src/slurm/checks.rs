//! What jobs of Brigade's must do under Slurm.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::cluster::{Cluster, printed, same};

/// The smallest run that takes long enough to be stopped.
const SETTINGS: &str = "
model = { sequence_length = 16, width = 16, layers = 2, heads = 2 }
data = { tokenizer = \"bytes\" }
train = { steps = 1500, micro_batch_size = 1, global_batch_size = 4, validate_every = 0 }
checkpoint = { every = 400 }
";

/// Longer than the time of a job that is told to end.
const MINUTES: Duration = Duration::from_secs(180);

/// For nodes to forget a job that they ended.
const PAUSE: Duration = Duration::from_secs(5);

const TRAIN: &str = "train --config tiny.toml --data text --quiet";

/// A folder with text and a reference, on a cluster.
pub struct Checks<'a> {
    cluster: &'a Cluster,
    brigade: PathBuf,
}

/// A check, by its name.
type Check<'a> = (&'static str, fn(&Checks<'a>) -> Result<()>);

impl<'a> Checks<'a> {
    /// All, in their order.
    pub const ALL: [Check<'a>; 7] = [
        ("a dry run says whether Slurm would take the job", Self::dry_run),
        ("two ranks on each of two nodes, started by srun", Self::by_srun),
        ("a launcher on each of two nodes, as brigade submit writes it", Self::by_launchers),
        ("preempted by a job of higher priority, and started again", Self::preempted),
        ("a node that fails, and comes back", Self::node_down),
        ("cancelled: it does not start again", Self::cancelled),
        ("the end of its time: it is told in time, and started again", Self::end_of_time),
    ];

    /// Trains the reference on one process.
    pub fn new(cluster: &'a Cluster, brigade: PathBuf) -> Result<Self> {
        let checks = Self { cluster, brigade };
        fs::write(checks.path("tiny.toml"), SETTINGS)?;
        fs::create_dir(checks.path("text"))?;
        for document in 0..24 {
            let line = format!("fn number_{document}() -> usize {{ {} }}\n", document * document);
            fs::write(checks.path(&format!("text/{document}.rs")), line.repeat(20 + document % 5))?;
        }
        printed(&mut checks.brigade(&format!("{} --out reference --nproc-per-node 1", TRAIN)))?;
        Ok(checks)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cluster.path(name)
    }

    fn brigade(&self, line: &str) -> Command {
        let mut command = Command::new(&self.brigade);
        command.args(line.split_whitespace()).current_dir(self.path(""));
        command.env("BRIGADE_CACHE_DIR", self.path("cache")).env("HF_HUB_OFFLINE", "1");
        command
    }

    /// Submits a run of two nodes of two ranks; the job's number.
    fn submit(&self, run: &str) -> Result<String> {
        self.submit_command(run, "", &format!("{TRAIN} --out {run} --nproc-per-node 2"))
    }

    /// Submits the script that `brigade submit` writes for a command on two nodes; the job's number.
    fn submit_command(&self, run: &str, options: &str, command: &str) -> Result<String> {
        let env = format!("--env BRIGADE_CACHE_DIR={}", self.path("cache").display());
        printed(&mut self.brigade(&format!(
            "submit --to slurm --nodes 2 --gpus 0 --program {} --name {run} --render {run}-job {env} {options} -- {command}",
            self.brigade.display()
        )))?;
        let mut sbatch = self.cluster.command("sbatch", "--parsable");
        // The nodes' names stand in no file of hosts here. Jobs have the environment in which they are submitted.
        sbatch.env("MASTER_ADDR", "127.0.0.1");
        let id = printed(sbatch.arg(self.path(&format!("{run}-job/slurm.sh"))).current_dir(self.path("")))?;
        Ok(id.trim().to_owned())
    }

    fn state(&self, id: &str) -> Result<String> {
        let text = self.cluster.output("scontrol", &format!("show job {id} --oneliner"))?;
        let state = text.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        Ok(state.unwrap_or_default().to_owned())
    }

    fn until_state(&self, id: &str, states: &[&str]) -> Result<()> {
        let what = format!("job {id} is {}", states.join(" or "));
        self.cluster.until(&what, || Ok(states.contains(&self.state(id)?.as_str())))
    }

    /// Waits until a run has taken some steps.
    fn until_step(&self, run: &str) -> Result<()> {
        let metrics = self.path(&format!("{run}/metrics.jsonl"));
        self.cluster.until(&format!("{run} has taken steps"), || {
            Ok(fs::read_to_string(&metrics)?.lines().count() > 5)
        })
    }

    /// Lets a job that waits to be started again start at once.
    fn start_again(&self, id: &str) -> Result<()> {
        self.until_state(id, &["PENDING"])?;
        self.cluster.output("scontrol", &format!("update JobId={id} StartTime=now"))?;
        self.until_state(id, &["RUNNING", "COMPLETED"])
    }

    /// Waits for the end of a job, which must have trained the weights of the reference.
    fn ends_as_the_reference(&self, id: &str, run: &str) -> Result<()> {
        let log = || fs::read_to_string(self.path(&format!("{run}-{id}.log"))).unwrap_or_default();
        self.until_state(id, &["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"])?;
        let state = self.state(id)?;
        ensure!(state == "COMPLETED", "job {id} of {run} is {state}:\n{}", log());
        let weights = |run: &str| self.path(&format!("{run}/model.safetensors"));
        ensure!(same(&weights(run), &weights("reference"))?, "{run} has other weights:\n{}", log());
        Ok(())
    }

    fn dry_run(&self) -> Result<()> {
        let said = |nodes: usize| -> Result<(bool, String)> {
            let mut command = self.brigade(&format!(
                "submit --to slurm --nodes {nodes} --gpus 0 --program {} --name dry --dry-run -- {TRAIN} --out dry --nproc-per-node 2",
                self.brigade.display()
            ));
            let output = command.env("SLURM_CONF", self.path("slurm.conf")).output()?;
            Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
        };
        let (takes, text) = said(2)?;
        ensure!(takes && text.contains("sbatch would take the job"), "two nodes are refused:\n{text}");
        let (takes, text) = said(3)?;
        let refused = text.contains("missing: the cluster did not accept it: sbatch --test-only");
        ensure!(!takes && refused, "three nodes are not refused:\n{text}");
        ensure!(self.cluster.output("squeue", "--noheader")?.is_empty(), "something was submitted");
        Ok(())
    }

    fn by_srun(&self) -> Result<()> {
        let mut srun = self.cluster.command("srun", "--nodes=2 --ntasks-per-node=2");
        srun.arg(&self.brigade).args(TRAIN.split_whitespace()).args(["--out", "srun"]);
        srun.current_dir(self.path(""))
            .env("BRIGADE_TOKEN", "a-token-of-this-test")
            .env("MASTER_ADDR", "127.0.0.1");
        printed(srun.env("BRIGADE_CACHE_DIR", self.path("cache")))?;
        let weights = |run: &str| self.path(&format!("{run}/model.safetensors"));
        ensure!(same(&weights("srun"), &weights("reference"))?, "other weights");
        Ok(())
    }

    fn by_launchers(&self) -> Result<()> {
        let id = self.submit("launchers")?;
        self.ends_as_the_reference(&id, "launchers")
    }

    fn preempted(&self) -> Result<()> {
        let id = self.submit("preempted")?;
        self.until_step("preempted")?;
        let mut other = self
            .cluster
            .command("sbatch", "--parsable -p high --nodes=2 --exclusive --output=/dev/null --wrap");
        let other = printed(other.arg("sleep 1").current_dir(self.path("")))?;
        self.until_state(&id, &["PENDING"])?;
        self.until_state(other.trim(), &["COMPLETED"])?;
        self.start_again(&id)?;
        self.ends_as_the_reference(&id, "preempted")?;
        let history = fs::read_to_string(self.path("preempted/history.jsonl"))?;
        ensure!(history.contains("preempted"), "it was not preempted: {history}");
        Ok(())
    }

    fn node_down(&self) -> Result<()> {
        let id = self.submit("down")?;
        self.until_step("down")?;
        self.cluster.output("scontrol", "update NodeName=node1 State=DOWN Reason=test")?;
        self.until_state(&id, &["PENDING"])?;
        self.cluster.output("scontrol", "update NodeName=node1 State=RESUME")?;
        self.start_again(&id)?;
        self.ends_as_the_reference(&id, "down")
    }

    fn cancelled(&self) -> Result<()> {
        let id = self.submit("cancelled")?;
        self.until_step("cancelled")?;
        self.cluster.output("scancel", &id)?;
        self.until_state(&id, &["CANCELLED"])?;
        // It saved before it ended.
        self.cluster.until("its last words", || {
            Ok(fs::read_to_string(self.path("cancelled/history.jsonl"))?.contains("preempted"))
        })?;
        ensure!(self.state(&id)? == "CANCELLED", "it is {}", self.state(&id)?);
        Ok(())
    }

    /// Its ranks do not train, as no short run lasts as long as the shortest time that leaves room for a save.
    fn end_of_time(&self) -> Result<()> {
        let rank = "[ -e told ] && exit 0\ntrap 'touch told; kill $!; exit 75' TERM\ntouch begun\nsleep 600 &\nwait\n";
        fs::write(self.path("rank.sh"), rank)?;
        let command = "launch --nproc-per-node 2 -- sh rank.sh";
        let id = self.submit_command("limited", "--time 2 --grace 5", command)?;
        self.cluster.until("its ranks run", || Ok(self.path("begun").exists()))?;
        // Up to two minutes after its start.
        let what = format!("job {id} waits to be started again");
        self.cluster.until_within(MINUTES, &what, || Ok(self.state(&id)? == "PENDING"))?;
        ensure!(self.path("told").exists(), "no rank got the signal");
        // A node starts no job in the second in which it has ended it; of itself, Slurm waits for minutes.
        std::thread::sleep(PAUSE);
        self.start_again(&id)?;
        self.until_state(&id, &["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"])?;
        ensure!(self.state(&id)? == "COMPLETED", "it is {}", self.state(&id)?);
        Ok(())
    }
}
