//! The committer's queue of commands, limited in number and bytes. When it is full, reading from
//! the remotes pauses.

use std::mem::{size_of, take};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::marks::PipelineMetrics;
use crate::model::{Change, Command, FindingChange, Object};

/// Maximum number of queued commands. A command is at most a page of a list (256 keys) or one watch
/// message, so 128 commands are about 32,000 keys or 10 MB. That is a second of work at the rate at
/// which etcd lists.
pub const QUEUE_LENGTH_MAX: usize = 128;

/// Maximum size of the queued commands and those that are being applied: 128 pages of usual keys,
/// which have about 0.8 KB each with the decoded object. A larger command waits until it is alone.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;

/// Maximum number of commands in a batch: enough to amortise publishing, few enough that readers
/// see changes within milliseconds.
const BATCH_COMMANDS_MAX: usize = 32;

/// Size above which a batch accepts no further command: 32 pages of usual keys.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The sending end of the queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CommandSender {
    commands: mpsc::Sender<QueuedCommand>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// A sender that does not keep the committer running, for tasks that rarely send a command. Cheap
/// to clone.
#[derive(Debug, Clone)]
pub struct WeakCommandSender {
    commands: mpsc::WeakSender<QueuedCommand>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// The committer's end of the queue.
#[derive(Debug)]
pub struct CommandQueue {
    commands: mpsc::Receiver<QueuedCommand>,
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// Reserved slot in the queue for one command.
#[derive(Debug)]
pub struct QueueSlot<'a> {
    slot: mpsc::Permit<'a, QueuedCommand>,
    permit: OwnedSemaphorePermit,
}

/// Error: the committer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the committer has ended")]
pub struct CommitterEnded;

/// A command with a permit for its bytes, which is released when the command is applied.
#[derive(Debug)]
struct QueuedCommand {
    command: Command,
    /// Time at which the command was queued.
    queued_at: Instant,
    permit: OwnedSemaphorePermit,
}

/// Commands that are applied together. Dropping the batch releases their bytes.
#[derive(Debug, Default)]
pub(super) struct CommandBatch {
    commands: Vec<Command>,
    /// Time at which the first command was queued.
    queued_at: Option<Instant>,
    permits: Vec<OwnedSemaphorePermit>,
    bytes: usize,
}

/// Creates a queue with the default limits.
#[must_use]
pub fn command_queue() -> (CommandSender, CommandQueue) {
    queue_with_limits(QUEUE_LENGTH_MAX, QUEUE_BYTES_MAX)
}

pub(super) fn queue_with_limits(length_max: usize, bytes_max: usize) -> (CommandSender, CommandQueue) {
    let (sender, commands) = mpsc::channel(length_max);
    let bytes = Arc::new(Semaphore::new(bytes_max));
    (CommandSender { commands: sender, bytes: Arc::clone(&bytes), bytes_max }, CommandQueue { commands, bytes, bytes_max })
}

impl CommandSender {
    /// Waits for a slot for a command. Cancelling the wait is safe: it reserves nothing.
    ///
    /// Slots are granted in the order of the calls, whatever the size of the command. A large
    /// command is therefore never overtaken by small ones, nor one cluster by others.
    ///
    /// # Errors
    /// The committer has ended.
    pub async fn reserve(&self, command: &Command) -> Result<QueueSlot<'_>, CommitterEnded> {
        let bytes = u32::try_from(command_bytes(command).min(self.bytes_max)).unwrap_or(u32::MAX);
        // a command that waits for a slot already has its bytes. It waits only for the committer,
        // which never waits for a particular command, so there is no deadlock
        let permit = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.map_err(|_| CommitterEnded)?;
        let slot = self.commands.reserve().await.map_err(|_| CommitterEnded)?;
        Ok(QueueSlot { slot, permit })
    }

    /// Returns a sender of the same queue that does not keep the committer running.
    #[must_use]
    pub fn downgrade(&self) -> WeakCommandSender {
        WeakCommandSender { commands: self.commands.downgrade(), bytes: Arc::clone(&self.bytes), bytes_max: self.bytes_max }
    }

    /// Sends a command as soon as there is a slot for it.
    ///
    /// # Errors
    /// The committer has ended.
    pub async fn send(&self, command: Command) -> Result<(), CommitterEnded> {
        self.reserve(&command).await?.send(command);
        Ok(())
    }
}

impl WeakCommandSender {
    /// Sends a command as soon as there is a slot for it.
    ///
    /// # Errors
    /// The committer has ended, or all senders that keep it running are dropped.
    pub async fn send(&self, command: Command) -> Result<(), CommitterEnded> {
        let commands = self.commands.upgrade().ok_or(CommitterEnded)?;
        CommandSender { commands, bytes: Arc::clone(&self.bytes), bytes_max: self.bytes_max }.send(command).await
    }
}

impl QueueSlot<'_> {
    /// Sends the command that the slot was reserved for.
    pub fn send(self, command: Command) {
        self.slot.send(QueuedCommand { command, queued_at: Instant::now(), permit: self.permit });
    }
}

impl CommandQueue {
    /// Waits for a command and adds it to the batch. Blocks. Returns false once every sender is
    /// dropped.
    pub(super) fn wait(&mut self, batch: &mut CommandBatch) -> bool {
        let received = self.commands.blocking_recv();
        received.map(|queued| batch.push(queued)).is_some()
    }

    /// Waits up to `time_max` for a command, measured with the runtime's timer. Returns `None` if
    /// no command arrived, and `Some(false)` once every sender is dropped.
    pub(super) fn wait_for(&mut self, time_max: Duration, runtime: &Handle, batch: &mut CommandBatch) -> Option<bool> {
        let received = runtime.block_on(async { timeout(time_max, self.commands.recv()).await });
        received.ok().map(|received| received.map(|queued| batch.push(queued)).is_some())
    }

    /// Adds queued commands to the batch until it is full.
    pub(super) fn fill(&mut self, batch: &mut CommandBatch) {
        while batch.accepts_more()
            && let Ok(queued) = self.commands.try_recv()
        {
            batch.push(queued);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Records how full the queue was before `batch` was taken from it.
    pub(super) fn record_fill(&self, batch: &CommandBatch, marks: &PipelineMetrics) {
        marks.commands.record(batch.commands.len() + self.commands.len());
        marks.command_bytes.record(self.bytes_max - self.bytes.available_permits().min(self.bytes_max));
    }
}

impl CommandBatch {
    fn push(&mut self, QueuedCommand { command, queued_at, permit }: QueuedCommand) {
        self.queued_at.get_or_insert(queued_at);
        self.bytes += permit.num_permits();
        self.permits.push(permit);
        self.commands.push(command);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    fn accepts_more(&self) -> bool {
        self.commands.len() < BATCH_COMMANDS_MAX && self.bytes < BATCH_BYTES_MAX
    }

    /// Returns the time at which the first command was queued.
    pub(super) fn queued_at(&self) -> Option<Instant> {
        self.queued_at
    }

    /// Returns the commands. Their bytes stay reserved until the batch is dropped.
    pub(super) fn take_commands(&mut self) -> Vec<Command> {
        take(&mut self.commands)
    }
}

/// Memory of an ipcache entry that is derived from a node: a record, an announcement with its key,
/// and a row of the group to be stored.
const DERIVED_ENTRY_BYTES: usize = 600;

/// Returns the memory of an object and of the entries that are derived from it when it is applied.
fn object_bytes(object: &Object) -> usize {
    object.footprint() + object.as_node().map_or(0, |node| node.entry_count_max() * DERIVED_ENTRY_BYTES)
}

/// Returns the approximate memory of a command.
fn command_bytes(command: &Command) -> usize {
    let change_bytes = |change: &Change| match change {
        Change::Put { key, value, decoded, .. } => {
            key.name.len() + value.len() + decoded.as_ref().map_or_else(|reason| reason.len(), |object| object_bytes(object))
        }
        Change::Delete { key } | Change::Hold { key } => key.name.len(),
    };
    let changes: usize = match command {
        Command::Apply { changes, .. } => changes.iter().map(|change| size_of::<Change>() + change_bytes(change)).sum(),
        Command::Findings(changes) => {
            let objects = changes.iter().filter_map(|(_, object)| object.as_ref());
            changes.iter().map(|(key, _)| size_of::<FindingChange>() + key.name.len()).sum::<usize>()
                + objects.map(|object| object.footprint()).sum::<usize>()
        }
        _ => 0,
    };
    size_of::<QueuedCommand>() + changes
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::model::{ClusterName, EntryKey, Kind, Node, Scope, SourceStamp};

    /// A command of a little more than this number of bytes.
    fn command(bytes: usize) -> Command {
        let cluster = ClusterName::parse("paris").unwrap();
        let key = EntryKey::new(Kind::Service, cluster.clone(), "shop/cart");
        let put = Change::Put { key, value: vec![0; bytes].into(), decoded: Err("x".into()), source: SourceStamp::default() };
        Command::Apply { scope: Scope { cluster, kind: Kind::Service }, changes: vec![put], cursor: None }
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn large_commands_wait_until_earlier_ones_are_applied() {
        let (sender, mut queue) = command_queue();
        let mut sent = 0;
        while let Poll::Ready(outcome) = poll(std::pin::pin!(sender.send(command(1 << 20)))) {
            outcome.unwrap();
            sent += 1;
        }
        assert_eq!(sent, (QUEUE_BYTES_MAX >> 20) - 1);
        let (mut batch, marks) = (CommandBatch::default(), PipelineMetrics::default());
        assert!(queue.wait(&mut batch));
        queue.fill(&mut batch);
        queue.record_fill(&batch, &marks);
        assert_eq!((batch.take_commands().len(), marks.commands.get()), (BATCH_BYTES_MAX >> 20, sent));
        assert!((QUEUE_BYTES_MAX - (1 << 20)..=QUEUE_BYTES_MAX).contains(&marks.command_bytes.get()));
        assert!(poll(std::pin::pin!(sender.send(command(1 << 20)))).is_pending(), "commands that are being applied keep their bytes");
        drop(batch);
        assert!(poll(std::pin::pin!(sender.send(command(1 << 20)))).is_ready());
    }

    #[test]
    fn a_command_larger_than_the_limit_passes_alone_and_in_order() {
        let (sender, mut queue) = queue_with_limits(8, 10_000);
        let mut first = std::pin::pin!(sender.send(command(5_000)));
        let mut large = std::pin::pin!(sender.send(command(1 << 20)));
        let mut small = std::pin::pin!(sender.send(command(1)));
        assert!(poll(first.as_mut()).is_ready());
        assert!(poll(large.as_mut()).is_pending() && poll(small.as_mut()).is_pending());
        let mut expect_batch = |sizes: &[usize]| {
            let mut batch = CommandBatch::default();
            assert!(queue.wait(&mut batch));
            queue.fill(&mut batch);
            assert_eq!(
                batch.take_commands().iter().map(command_bytes).collect::<Vec<_>>(),
                sizes.iter().map(|size| command_bytes(&command(*size))).collect::<Vec<_>>()
            );
        };
        expect_batch(&[5_000]);
        assert!(poll(small.as_mut()).is_pending());
        assert!(poll(large.as_mut()).is_ready() && poll(small.as_mut()).is_pending());
        expect_batch(&[1 << 20]);
        assert!(poll(small.as_mut()).is_ready());
        expect_batch(&[1]);
    }

    #[test]
    fn a_cancelled_send_reserves_nothing_and_waiting_senders_fail_when_the_queue_closes() {
        let (sender, queue) = queue_with_limits(1, 10_000);
        assert!(poll(std::pin::pin!(sender.send(command(9_000)))).is_ready());
        {
            let mut large = std::pin::pin!(sender.send(command(5_000)));
            assert!(poll(large.as_mut()).is_pending());
        }
        {
            let mut waiting_for_slot = std::pin::pin!(sender.send(command(1)));
            assert!(poll(waiting_for_slot.as_mut()).is_pending());
        }
        let mut waiting = std::pin::pin!(sender.send(command(5_000)));
        assert!(poll(waiting.as_mut()).is_pending());
        drop(queue);
        assert_eq!(poll(waiting), Poll::Ready(Err(CommitterEnded)));
        assert_eq!(sender.bytes.available_permits(), 10_000);
    }

    /// 14 bytes of a node's value become an entry that uses 40 times as much.
    #[test]
    fn a_node_reserves_the_bytes_of_its_derived_entries() {
        let net = |number: u32| ipnet::Ipv4Net::new(number.into(), 32).unwrap().into();
        let node = Node { secondary_pod_cidrs: (0..10_000).map(net).collect(), ..Node::default() };
        let key = EntryKey::new(Kind::Node, ClusterName::parse("paris").unwrap(), "worker");
        let put =
            Change::Put { key, value: [7; 140_000].into(), decoded: Ok(Object::Node(node.into()).into()), source: SourceStamp::default() };
        let scope = Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Node };
        let bytes = command_bytes(&Command::Apply { scope, changes: vec![put], cursor: None });
        assert!((6_000_000..7_000_000).contains(&bytes), "{bytes}");
    }
}
