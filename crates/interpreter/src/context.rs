//! One context: its driver, and the queue of cells for it, one at a time in the order in which they came.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cell::{Cell, CellEnd, CellEvent, ContextDeath};
use crate::contexts::{ContextInfo, ContextState, DriverTag};
use crate::driver::{DriverNews, DriverProcess, DriverSilence};
use crate::error::ContextError;
use crate::limits::CellLimits;
use crate::obstacle::CarryObstacle;
use crate::past;
use crate::process::{ProcessError, ProcessHost};
use crate::run;

mod state;

pub(crate) use state::{SaveRequest, too_late};

/// Events that wait for whoever runs a cell.
const EVENTS: usize = 4;
/// Orders that wait for a context.
const ORDERS: usize = 16;
/// How often a driver that is busy with nobody's cell is told to stop.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// What a context is told beside cells.
#[derive(Debug)]
pub(crate) enum ContextOrder {
    /// To have a driver that runs.
    Ready(SaveReply),
    /// To have a driver that has loaded these modules and runs no cell.
    Prepare(Vec<String>, SaveReply),
    /// To have a driver that has loaded what cells of another left in that file.
    Load(String, oneshot::Sender<Result<Vec<CarryObstacle>, ContextError>>),
    /// To interrupt the cell that runs.
    Interrupt,
    /// To have a new driver.
    Restart(SaveReply),
    /// To end.
    Remove(SaveReply),
}

type SaveReply = oneshot::Sender<Result<(), ContextError>>;

impl ContextOrder {
    /// What becomes of a cell that runs.
    pub(crate) fn death(&self) -> ContextDeath {
        match self {
            Self::Remove(_) => ContextDeath::Removed,
            _ => ContextDeath::Restarted,
        }
    }
}

#[derive(Debug)]
enum ContextJob {
    Cell {
        cell: Cell,
        events: mpsc::Sender<CellEvent>,
    },
    Save(SaveRequest),
}

/// What is known of a context from outside.
#[derive(Debug, Clone, Copy)]
struct ContextStatus {
    state: ContextState,
    count: u64,
    coming_back: bool,
}

/// What is there of a context from the beginning.
#[derive(Debug)]
pub(crate) enum ContextOrigin {
    /// Nothing: its driver is started when it is needed.
    Nothing,
    /// A driver, and what the next cell is to be told of the one before it.
    Driver {
        pid: u32,
        turn: DriverTag,
        untold: Option<ContextDeath>,
    },
    /// That its driver has ended, and what the next cell is to be told of that.
    End {
        turn: DriverTag,
        untold: Option<ContextDeath>,
    },
}

/// A context; its work is done by a task that ends with the last of these, and leaves the driver alone then.
#[derive(Debug)]
pub(crate) struct Context {
    info: ContextInfo,
    jobs: mpsc::Sender<ContextJob>,
    orders: mpsc::Sender<ContextOrder>,
    standing: Arc<Mutex<ContextStatus>>,
}

impl Context {
    /// A context of which there is what was found.
    pub(crate) fn new<P: ProcessHost>(
        processes: P,
        info: ContextInfo,
        found: ContextOrigin,
        limits: CellLimits,
    ) -> Self {
        let (jobs, jobs_of_actor) = mpsc::channel(limits.waiting.max(1));
        let (orders, orders_of_actor) = mpsc::channel(ORDERS);
        let (state, pid, turn, untold) = match found {
            ContextOrigin::Nothing => (ContextState::Unstarted, None, DriverTag::First, None),
            ContextOrigin::Driver { pid, turn, untold } => {
                let untold = untold.map(|death| (death, turn.other()));
                (ContextState::Starting, Some(pid), turn, untold)
            }
            ContextOrigin::End { turn, untold } => (ContextState::Dead, None, turn, untold.map(|death| (death, turn))),
        };
        let standing = Arc::new(Mutex::new(ContextStatus {
            state,
            count: 0,
            coming_back: false,
        }));
        let actor = ContextActor {
            processes,
            info: info.clone(),
            limits,
            driver: None,
            turn,
            untold,
            jobs: jobs_of_actor,
            orders: orders_of_actor,
            standing: Arc::clone(&standing),
        };
        tokio::spawn(actor.serve(pid));
        Self {
            info,
            jobs,
            orders,
            standing,
        }
    }

    pub(crate) fn info(&self) -> ContextInfo {
        let standing = *self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        ContextInfo {
            state: standing.state,
            count: standing.count,
            ..self.info.clone()
        }
    }

    /// Whether it has had no driver, because nobody asked anything of it.
    pub(crate) fn is_unstarted(&self) -> bool {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).state == ContextState::Unstarted
    }

    /// Whether its driver has ended while it ran no cell, and the next one is not there yet.
    pub(crate) fn is_coming_back(&self) -> bool {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.coming_back
    }

    /// Whether it may still do something: neither is it removed nor its sandbox gone.
    pub(crate) fn lives(&self) -> bool {
        !self.orders.is_closed()
    }

    /// Puts a cell behind those that wait; what happens to it comes from the receiver. Dropping that interrupts it.
    pub(crate) fn submit(&self, cell: Cell) -> Result<mpsc::Receiver<CellEvent>, ContextError> {
        let (events, receiver) = mpsc::channel(EVENTS);
        self.put(ContextJob::Cell { cell, events })?;
        Ok(receiver)
    }

    /// Has it save what its cells left, after the cells that wait.
    pub(crate) fn save(&self, asked: SaveRequest) -> Result<(), ContextError> {
        self.put(ContextJob::Save(asked))
    }

    fn put(&self, job: ContextJob) -> Result<(), ContextError> {
        match self.jobs.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(ContextError::Exhausted {
                what: format!("{} cells wait for the context already", self.jobs.max_capacity()),
            }),
            Err(TrySendError::Closed(_)) => Err(self.not_found()),
        }
    }

    /// Gives an order and waits until it was carried out.
    pub(crate) async fn order<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, ContextError>>) -> ContextOrder,
    ) -> Result<T, ContextError> {
        let (reply, answer) = oneshot::channel();
        let given = self.orders.send(order(reply)).await;
        given.map_err(|_| self.not_found())?;
        answer.await.unwrap_or_else(|_| Err(self.not_found()))
    }

    /// Interrupts the cell that runs, if one does.
    pub(crate) async fn interrupt(&self) -> Result<(), ContextError> {
        self.orders
            .send(ContextOrder::Interrupt)
            .await
            .map_err(|_| self.not_found())
    }

    fn not_found(&self) -> ContextError {
        ContextError::NotFound {
            id: self.info.id.clone(),
        }
    }
}

/// Does the work of a context.
struct ContextActor<P: ProcessHost> {
    processes: P,
    info: ContextInfo,
    limits: CellLimits,
    driver: Option<DriverProcess<P>>,
    /// Which tag the driver has, or the last one had.
    turn: DriverTag,
    /// That a driver ended when no cell ran, which the next cell is told, and which tag it had.
    untold: Option<(ContextDeath, DriverTag)>,
    jobs: mpsc::Receiver<ContextJob>,
    orders: mpsc::Receiver<ContextOrder>,
    standing: Arc<Mutex<ContextStatus>>,
}

enum DueWork {
    Order(Option<ContextOrder>),
    Job(Option<ContextJob>),
    News(DriverNews),
}

impl<P: ProcessHost> ContextActor<P> {
    async fn serve(mut self, pid: Option<u32>) {
        if let Some(pid) = pid {
            self.adopt(pid).await;
        }
        loop {
            let due = tokio::select! {
                biased;
                order = self.orders.recv() => DueWork::Order(order),
                job = self.jobs.recv() => DueWork::Job(job),
                news = idle(&mut self.driver) => DueWork::News(news),
            };
            let goes_on = match due {
                DueWork::Order(Some(order)) => self.carry_out(order).await,
                DueWork::Job(Some(ContextJob::Cell { cell, events })) => self.run(cell, events).await,
                DueWork::Job(Some(ContextJob::Save(asked))) => {
                    self.save(asked).await;
                    true
                }
                // Written between two cells, by what an earlier one left running.
                DueWork::News(DriverNews::Frame(_)) => true,
                DueWork::News(DriverNews::Over(ContextDeath::SandboxGone { .. }))
                | DueWork::Order(None)
                | DueWork::Job(None) => false,
                DueWork::News(DriverNews::Over(death)) => {
                    self.is_coming_back(true);
                    self.come_back(death).await;
                    self.is_coming_back(false);
                    true
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Has a new driver in the place of one that has ended while no cell ran.
    async fn come_back(&mut self, death: ContextDeath) {
        let (had_run, before) = (self.has_run(), self.untold.take());
        self.lose_driver(death).await;
        if !had_run {
            // Nothing is lost with it: the next cell goes to another, and so does what it was to be told.
            self.is_told().await;
            self.untold = before;
            return;
        }
        self.turn = self.turn.other();
        if self.start().await.is_err() {
            // The next cell tries again, when it was told.
            self.turn = self.turn.other();
        }
    }

    /// Takes over a driver that an earlier daemon started.
    async fn adopt(&mut self, pid: u32) {
        match DriverProcess::attach(&self.processes, pid).await {
            Ok(driver) => {
                self.driver = Some(driver);
                let _known = self.settle().await;
            }
            Err(_) => self.note(ContextState::Dead),
        }
    }

    /// Brings the driver to where it waits for a cell: one that runs is nobody's.
    async fn settle(&mut self) -> Result<(), ContextError> {
        let until = Instant::now() + self.limits.grace;
        let mut patience = self.limits.answer.min(ASK_AGAIN);
        loop {
            let Some(driver) = self.driver.as_mut().filter(|driver| driver.is_unknown()) else {
                return Ok(());
            };
            match driver.synchronise(patience).await {
                Ok(count) => {
                    self.count(count);
                    self.note(ContextState::Idle);
                    return Ok(());
                }
                Err(DriverSilence::Busy) if Instant::now() < until => {
                    match driver.interrupt().await {
                        Err(error @ ProcessError::Paused) => return Err(error.into()),
                        // What came of it shows in the answer.
                        Ok(()) | Err(_) => patience = ASK_AGAIN,
                    }
                }
                Err(DriverSilence::Busy) => {
                    self.lose_driver(ContextDeath::Stubborn { timed_out: false }).await;
                    return Ok(());
                }
                Err(DriverSilence::Gone(death, _)) => {
                    self.lose_driver(death).await;
                    return Ok(());
                }
                Err(DriverSilence::Process(error)) => return Err(error.into()),
            }
        }
    }

    async fn carry_out(&mut self, order: ContextOrder) -> bool {
        match order {
            ContextOrder::Interrupt => {}
            ContextOrder::Ready(reply) => {
                // A caller that is gone needs no answer, here and below.
                let _told = reply.send(self.make_ready().await);
            }
            ContextOrder::Prepare(modules, reply) => {
                let _told = reply.send(self.prepare(&modules).await);
            }
            ContextOrder::Load(path, reply) => {
                let _told = reply.send(self.load(&path).await);
            }
            ContextOrder::Restart(reply) => {
                let ended = self.end_driver().await;
                self.untold = None;
                let outcome = match ended {
                    Ok(()) => self.make_ready().await,
                    Err(error) => Err(error),
                };
                let _told = reply.send(outcome);
            }
            ContextOrder::Remove(reply) => {
                let ended = self.end_driver().await;
                let goes_on = ended.is_err();
                let _told = reply.send(ended);
                return goes_on;
            }
        }
        true
    }

    /// Has a driver that waits for a cell.
    async fn make_ready(&mut self) -> Result<(), ContextError> {
        self.settle().await?;
        if self.driver.is_some() || self.untold.is_some() {
            return Ok(());
        }
        self.start().await
    }

    async fn start(&mut self) -> Result<(), ContextError> {
        self.note(ContextState::Starting);
        self.count(0);
        let cwd = Some(self.info.cwd.clone());
        let tag = self.info.tag(self.turn);
        match DriverProcess::start(&self.processes, self.info.language, cwd, tag, &self.limits).await {
            Ok(driver) => {
                self.driver = Some(driver);
                self.note(ContextState::Idle);
                Ok(())
            }
            Err(error) => {
                self.note(ContextState::Dead);
                Err(error)
            }
        }
    }

    /// Has a driver that has loaded modules.
    async fn prepare(&mut self, modules: &[String]) -> Result<(), ContextError> {
        self.make_ready().await?;
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let outcome = driver.import(self.info.language, modules, self.limits.start).await;
        if outcome.is_err() {
            let _ended = self.end_driver().await;
            self.driver = None;
        }
        outcome
    }

    /// Ends the driver as somebody wanted it, so that nobody is told.
    async fn end_driver(&mut self) -> Result<(), ContextError> {
        for turn in [self.turn.other(), self.turn] {
            // Of other failures comes that a later daemon tells what nobody needs to know.
            if let Err(error @ ProcessError::Paused) = self.processes.note_end(&self.info.tag(turn), None).await {
                return Err(error.into());
            }
        }
        self.kill_driver().await
    }

    async fn kill_driver(&mut self) -> Result<(), ContextError> {
        if let Some(driver) = &mut self.driver {
            driver.kill().await?;
        }
        self.driver = None;
        self.note(ContextState::Dead);
        Ok(())
    }

    /// The driver is of no use any more.
    async fn lose_driver(&mut self, death: ContextDeath) {
        if let Some(note) = past::note_of(&death) {
            // Without it a later daemon tells the end that follows now.
            let _noted = self.processes.note_end(&self.info.tag(self.turn), Some(note)).await;
        }
        // It may have ended by itself, and what cannot be ended ends with the sandbox.
        let _ended = self.kill_driver().await;
        self.driver = None;
        self.untold = Some((death, self.turn));
        self.note(ContextState::Dead);
    }

    /// Nobody has to be told that a driver has ended, nor by a later daemon.
    async fn is_told(&mut self) {
        let Some((_, turn)) = self.untold.take() else { return };
        // Where none runs, it is known by its end that there is such a context.
        let note = if self.driver.is_some() { None } else { past::told() };
        let _noted = self.processes.note_end(&self.info.tag(turn), note).await;
    }

    async fn run(&mut self, cell: Cell, events: mpsc::Sender<CellEvent>) -> bool {
        if events.is_closed() {
            return true;
        }
        if let Err(error) = self.make_ready().await {
            let death = match error {
                ContextError::Process(ProcessError::Gone) => ContextDeath::SandboxGone { why: None },
                error => ContextDeath::NotStarted {
                    reason: error.to_string(),
                },
            };
            let _told = events.send(CellEvent::End(CellEnd::Died(death))).await;
            return true;
        }
        if let Some((death, _)) = &self.untold {
            let _told = events.send(CellEvent::End(CellEnd::DiedBefore(death.clone()))).await;
            self.is_told().await;
            return true;
        }
        let Some(driver) = &mut self.driver else {
            return true;
        };
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).state = ContextState::Busy;
        let (end, order) = run::run(driver, &cell, &events, &mut self.orders, &self.limits).await;
        let gone = matches!(end, CellEnd::Died(ContextDeath::SandboxGone { .. }));
        if let CellEnd::Died(death) | CellEnd::DiedBefore(death) = &end {
            self.lose_driver(death.clone()).await;
            // Whoever runs the cell is told now, or is gone: then the next one is.
            if !gone && !events.is_closed() {
                self.is_told().await;
            }
        } else {
            self.standing.lock().unwrap_or_else(PoisonError::into_inner).count += 1;
            self.note(ContextState::Idle);
        }
        let _told = events.send(CellEvent::End(end)).await;
        match order {
            Some(order) => self.carry_out(order).await,
            None => !gone,
        }
    }

    fn has_run(&self) -> bool {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).count > 0
    }

    fn is_coming_back(&self, is: bool) {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).coming_back = is;
    }

    fn note(&self, state: ContextState) {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).state = state;
    }

    fn count(&self, count: u64) {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).count = count;
    }
}

/// What a driver says that waits for a cell; nothing where there is none.
async fn idle<P: ProcessHost>(driver: &mut Option<DriverProcess<P>>) -> DriverNews {
    match driver {
        Some(driver) if !driver.is_unknown() => driver.next().await,
        _ => std::future::pending().await,
    }
}
