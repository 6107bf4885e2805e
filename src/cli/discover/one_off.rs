//! `--once` and `--dry-run`: one pass over all selectors, told as a table.

use std::time::Duration;

use tokio::time::timeout;

use super::{super::CliError, Selectors};
use crate::discovery::{
    Snapshot,
    apply::{Check, PassError, PassReport, Preview, RemoteTarget, Target},
    fleet::PeersView,
    wiring::{Board, Member, Outcome, Wire, WiringStatus},
};

/// Longest time for one pass over a selector, whatever its calls are allowed each.
const ONCE_TIMEOUT: Duration = Duration::from_secs(300);

/// Applies `snapshot` everywhere and wires the selectors; then asks each whether it has all of it.
///
/// # Errors
/// A selector that has not.
pub(super) async fn once(snapshot: Snapshot, selectors: Selectors) -> Result<(), CliError> {
    let wanted = snapshot.clone();
    let catalogs = each(
        selectors.targets,
        |t| t.name().to_owned(),
        move |mut target| {
            let snapshot = wanted.clone();
            async move { apply(&mut target, &snapshot).await }
        },
    );
    let (catalogs, peers) = tokio::join!(catalogs, wire(selectors.wires, &selectors.board, true));
    let mut rows = vec![["selector", "catalog", "peers"].map(str::to_owned)];
    let mut reasons = Vec::new();
    let mut failed = 0;
    for ((name, catalog), (_, status)) in catalogs.into_iter().zip(&peers) {
        let view = PeersView::new(status);
        let cell = match &catalog {
            Ok(report) => format!("applied, {} sent, {} removed", report.upserted, report.deleted),
            Err(_) => "failed".to_owned(),
        };
        failed += usize::from(catalog.is_err() || !status.state().is_settled());
        match catalog {
            Ok(report) => reasons.extend(
                report
                    .not_schedulable
                    .iter()
                    .map(|(id, why)| format!("worker {id} takes no bookings: {}", why.join("; "))),
            ),
            Err(error) => reasons.push(format!("{name}: catalog: {error}")),
        }
        reasons.extend(peer_reasons(&view).into_iter().map(|reason| format!("{name}: peers: {reason}")));
        rows.push([name, cell, view.words()]);
    }
    print_table(&rows);
    reasons.dedup();
    for reason in reasons {
        println!("{reason}");
    }
    if failed == 0 {
        println!("all selectors agree: {} workers, digest {}", snapshot.workers().len(), snapshot.digest());
        return Ok(());
    }
    Err(CliError::Failed(format!("{failed} of {} selectors do not have everything", peers.len())))
}

/// One pass, and a look whether it holds.
async fn apply(target: &mut RemoteTarget, snapshot: &Snapshot) -> Result<PassReport, PassError> {
    let report = target.apply(snapshot).await?;
    tracing::info!(selector = target.name(), upserted = report.upserted, deleted = report.deleted, "catalog applied");
    match target.check(snapshot).await? {
        Check::Same => Ok(report),
        Check::Differs(why) => Err(PassError::Refused(format!("applied, and then: {why}"))),
    }
}

/// Says what a pass would change.
///
/// # Errors
/// A selector that cannot be asked, or that claims another one's publisher, so that neither would be wired.
pub(super) async fn preview(snapshot: Snapshot, selectors: Selectors) -> Result<(), CliError> {
    let wanted = snapshot.clone();
    let catalogs = each(
        selectors.targets,
        |t| t.name().to_owned(),
        move |mut target| {
            let snapshot = wanted.clone();
            async move { target.preview(&snapshot).await }
        },
    );
    let (catalogs, peers) = tokio::join!(catalogs, wire(selectors.wires, &selectors.board, false));
    let (mut failed, mut clashing) = (0, 0);
    for ((name, catalog), (_, status)) in catalogs.into_iter().zip(&peers) {
        failed += usize::from(catalog.is_err() || status.away);
        clashing += usize::from(!status.plan.clashes.is_empty());
        match catalog {
            Ok(preview) => print_preview(&name, &preview, &snapshot),
            Err(error) => println!("{name}: failed: {error}"),
        }
        print_peers(status);
    }
    match (failed, clashing) {
        (0, 0) => Ok(()),
        (0, _) => Err(CliError::Failed(format!("{clashing} of the selectors publish at one address"))),
        _ => Err(CliError::Failed(format!("{failed} of the selectors could not be asked"))),
    }
}

/// Looks at every selector, then makes each one's peers what they should be if `act`, and looks again.
async fn wire(wires: Vec<Wire>, board: &Board, act: bool) -> Vec<(String, WiringStatus)> {
    let named = |wire: &Wire| wire.name().to_owned();
    // All have to be asked before it is known what anybody should have.
    let asked = each(wires, named, |mut wire| async move {
        let found = wire.look().await;
        Ok((wire, found))
    });
    let mut present = Vec::new();
    let mut statuses: Vec<(String, WiringStatus)> = Vec::new();
    for (place, (name, found)) in asked.await.into_iter().enumerate() {
        let mut status = WiringStatus::default();
        match found {
            Ok((wire, Ok((look, facts)))) => {
                status.publisher = Some(facts.publisher.clone());
                status.look = Some(look);
                board.tell(wire.name(), facts);
                present.push((place, wire));
            }
            Ok((_, Err(error))) | Err(error) => {
                status.away = true;
                status.error = Some(error.to_string());
            }
        }
        statuses.push((name, status));
    }
    let members = board.members();
    let places: Vec<usize> = present.iter().map(|(place, _)| *place).collect();
    let work: Vec<_> = present.into_iter().map(|(place, wire)| (wire, statuses[place].1.clone())).collect();
    let done = each(
        work,
        |(wire, _)| wire.name().to_owned(),
        move |(wire, status)| {
            let members = members.clone();
            async move { Ok(settle(wire, status, &members, act).await) }
        },
    );
    for (place, (_, outcome)) in places.into_iter().zip(done.await) {
        match outcome {
            Ok(status) => statuses[place].1 = status,
            Err(error) => statuses[place].1.error = Some(error.to_string()),
        }
    }
    statuses
}

/// One selector's turn: plan, and if `act` do it and plan again from what the selector then says.
async fn settle(mut wire: Wire, mut status: WiringStatus, members: &[Member], act: bool) -> WiringStatus {
    let mut outcome = Outcome::default();
    let done = async {
        let look = status.look.clone().unwrap_or_default();
        status.plan = wire.plan(members, &look).await?;
        if !act {
            return Ok(());
        }
        let applied = wire.apply(&status.plan, &mut outcome).await;
        let (look, _) = wire.look().await?;
        status.plan = wire.plan(members, &look).await?;
        status.look = Some(look);
        applied
    }
    .await;
    let error: Option<PassError> = done.err();
    status.away = error.as_ref().is_some_and(PassError::is_absence);
    status.error = error.map(|e| e.to_string());
    status.problems = outcome.problems;
    status
}

/// Runs `work` on every item at once; the results are in their order.
async fn each<T, R, F>(
    items: Vec<T>,
    named: impl Fn(&T) -> String,
    work: impl Fn(T) -> F,
) -> Vec<(String, Result<R, PassError>)>
where
    R: Send + 'static,
    F: Future<Output = Result<R, PassError>> + Send + 'static,
{
    let started: Vec<_> =
        items.into_iter().map(|item| (named(&item), tokio::spawn(timeout(ONCE_TIMEOUT, work(item))))).collect();
    let mut outcomes = Vec::new();
    for (name, task) in started {
        let outcome = match task.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(PassError::Refused(format!("not done within {} s", ONCE_TIMEOUT.as_secs()))),
            Err(error) => Err(PassError::Refused(error.to_string())),
        };
        outcomes.push((name, outcome));
    }
    outcomes
}

/// Why peers are not as they should be, and what else is worth a line.
fn peer_reasons(view: &PeersView) -> Vec<String> {
    let mut reasons = Vec::new();
    for (problems, what) in [(&view.missing, "missing"), (&view.leaving, "still there")] {
        for problem in problems {
            let why = problem.reason.as_deref().map_or_else(String::new, |why| format!(": {why}"));
            reasons.push(format!("{} is {what}{why}", problem.endpoint));
        }
    }
    if !view.same_as.is_empty() {
        reasons.push(format!("the same selector as {}: wired once", view.same_as.join(" ")));
    }
    if !view.clashes.is_empty() {
        let publisher = view.publisher.as_deref().unwrap_or_default();
        let others = view.clashes.join(" ");
        reasons.push(format!(
            "publishes at {publisher}, as {others} does: name the right ones after a comma in --selector"
        ));
    }
    match view.state {
        "disabled" => {
            reasons.push("replica sync is off there: start it with --replica-sync-port to wire it".to_owned())
        }
        "unsupported" => reasons.push("it has no /replica_sync routes".to_owned()),
        _ if reasons.is_empty() => reasons.extend(view.last_error.clone()),
        _ => {}
    }
    reasons
}

fn print_table(rows: &[[String; 3]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let (first, second) = (width(0), width(1));
    for [selector, catalog, peers] in rows {
        println!("{selector:first$}  {catalog:second$}  {peers}");
    }
}

fn print_preview(name: &str, preview: &Preview, wanted: &Snapshot) {
    let Preview { added, changed, removed, foreign } = preview;
    println!("{name}: {} to add, {} to change, {} to remove", added.len(), changed.len(), removed.len());
    let endpoint = |id: u64| {
        let endpoint = wanted.get(id).and_then(|w| w.request.fields.endpoint.as_deref());
        endpoint.unwrap_or("no endpoint").to_owned()
    };
    for (mark, ids) in [("+", added), ("~", changed)] {
        for id in ids {
            println!("  {mark} {id}  {}", endpoint(*id));
        }
    }
    for id in removed {
        println!("  - {id}");
    }
    for (id, owner) in foreign {
        println!("  ! {id} belongs to {owner} and stays as it is");
    }
}

fn print_peers(status: &WiringStatus) {
    let plan = &status.plan;
    println!("  peers: {} to register, {} to remove", plan.register.len(), plan.deregister.len());
    for (endpoint, selector) in &plan.register {
        println!("  + {endpoint}  of {selector}");
    }
    for endpoint in &plan.deregister {
        println!("  - {endpoint}");
    }
    for endpoint in &plan.strangers {
        println!("  ! {endpoint} is none of these selectors and stays");
    }
    let view = PeersView::new(status);
    // What is missing was just said.
    let told = PeersView { missing: Vec::new(), leaving: Vec::new(), ..view };
    for reason in peer_reasons(&told) {
        println!("  {reason}");
    }
}
