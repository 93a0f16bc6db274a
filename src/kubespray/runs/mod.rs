//! Runs of kubespray's playbooks: child processes that are started once, found again, followed and cancelled.
//!
//! A *run* is one playbook over one inventory, and has a folder of its own below `data_dir/kubespray`. In it stand what it is to
//! do (`plan.json`), what it needs (`private/`: inventory, variables, key), and what came of it:
//!
//! | file | written by | what it says |
//! |---|---|---|
//! | `plan.json` | [`Runs::start`], in a folder that gets the run's name when all of it is on disk | command, environment, bounds |
//! | `lock` | locked by the supervisor as long as it lives | whether somebody looks after the run |
//! | `started.json` | the supervisor, before it starts Ansible; never twice | process id and its start time |
//! | `events.jsonl` | a callback plugin of ours in Ansible | one line for each play, task and result of a host |
//! | `log` | the supervisor | what Ansible prints, to a bound |
//! | `cancelled` | [`Runs::cancel`] | that it is to end |
//! | `ended.json` | the supervisor, last | how it ended |
//!
//! The *supervisor* ([`supervise`]) is this program again, as a process in a session of its own. So a run goes on while the
//! appliance is restarted, its time is bounded and its end is noted while nobody else is there, and its key is removed at once.
//!
//! Ansible is started at most once for a run. The supervisor makes `started.json` under the lock, and only if there is none; so
//! the appliance may start a supervisor as often as it has doubts. A supervisor that died after that leaves the run *lost*: what
//! it left behind is ended, and whoever wants the work done makes a new run, because playbooks may be repeated.
//!
//! ```text
//! let runs = Runs::open(&config.data_dir.kubespray(), Supervisor::this_program())?;
//! runs.start(&installation, &request).await?;        // begins it, or finds it: as often as one likes
//! runs.follow(&id, |status| show(status)).await?;    // to its end; whoever drops this leaves the run alone
//! runs.log(&id, from)?;                              // a part of its log, and where the next one begins
//! runs.cancel(&id).await?;                           // when its object goes
//! runs.remove(&id)?;                                 // once it is over
//! ```
//!
//! What a node prints is the node's, so events are parsed as hostile ([`events`]) and nothing of them decides but the verdict
//! ([`state::verdict`]).

mod command;
mod confine;
mod events;
mod folder;
mod installation;
mod mirrors;
mod output;
mod processes;
mod progress;
mod removal;
mod request;
mod runner;
mod state;
mod supervise;
#[cfg(test)]
pub(in crate::kubespray) mod tests;
mod vars;
mod versions;

pub use command::SupervisorPlan;
pub use confine::is_confined;
pub use events::{AnsibleEvent, HostResult};
pub use installation::{Installation, Versions};
pub use mirrors::Mirrors;
pub use progress::{PlaybookHostProgress, PlaybookProgress, TaskFailure};
pub use request::{HostKeys, PATH, Playbook, RequestFault, RunId, RunLimits, RunOwner, RunRequest};
pub use runner::{LogPart, RunReader, RunStatus, RunSupervisor, Runs, RunsError, SettledRun};
pub use state::{Cause, RunEnd, RunPhase, RunVerdict};
pub use supervise::{CrashPoint, supervise};
pub use vars::{RunVars, VariablesTooLong};
