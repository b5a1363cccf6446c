//! The table of calls: one row for each method of the daemon's interfaces.
//!
//! To add a call, describe it in its interface file, add its parameters to `protocol/messages`, its
//! handler to `server/requests`, and a row here.

/// Passes the table to the macro `$make`. Each row has the interface of a method, the method as an
/// [`Asked`](crate::calls::call::Asked) with its parameters, its
/// [`Trait`](crate::calls::call::Trait)s, and how `server` answers the parameters `it` of a
/// `caller`.
macro_rules! table_of_calls {
    ($make:ident) => {
        $make! {
            |server, caller, it|
            INTERFACE: Abandon(RequestTag) [] => server.abandon(caller, &it);
            INTERFACE: Acquire(Box<Acquire>) [NeedsLog, AsksForLock] =>
                server.acquire(caller, it, None);
            INTERFACE: Configuration(IgnoredAny) [] => Ok(server.configuration(caller));
            INTERFACE: Confirm(RequestTag) [NeedsLog, GoesFirst] => server.confirm(caller, &it);
            INTERFACE: DeadlinePage(DeadlinePageQuery) [] => server.page(&it);
            INTERFACE: EndedLeases(EndedLeasesQuery) [] => server.ended_leases(caller, &it);
            INTERFACE: Graph(NoParameters) [IsReport] => Ok(server.graph(caller));
            INTERFACE: History(HistoryQuery) [IsReport] => server.history(caller, &it);
            INTERFACE: HistoryStats(HistoryStatsQuery) [IsReport] =>
                server.history_stats(caller, &it);
            INTERFACE: Kill(Kill) [NeedsLog] => server.kill(caller, &it);
            INTERFACE: Leader(LeaderQuery) [NeedsLog] => server.leader(caller, &it);
            INTERFACE: Metrics(IgnoredAny) [IsReport] => Ok(server.metrics());
            INTERFACE: Overrun(RequestTag) [] => server.overrun(caller, &it);
            INTERFACE: Prioritize(Prioritize) [NeedsLog] => server.prioritize(caller, &it);
            INTERFACE: Release(Release) [NeedsLog, GoesFirst] => server.release(caller, &it);
            INTERFACE: Reload(IgnoredAny) [] => server.reload(caller);
            INTERFACE: Renew(Renew) [NeedsLog, GoesFirst, IsUnrestricted] =>
                server.renew(caller, &it);
            INTERFACE: Resize(Resize) [NeedsLog] => server.resize(caller, &it);
            INTERFACE: Status(StatusQuery) [IsReport] => server.status(caller, &it);
            INTERFACE: Stop(NoParameters) [NeedsNoTable] => server.stop(caller);
            INTERFACE: Why(WhyQuery) [IsReport] => server.why(caller, &it);
            INTERFACE: WouldAcquire(WouldAcquire) [NeedsLog] => server.would_acquire(caller, &it);
            INTERFACE: WouldKill(WouldKill) [NeedsLog] => server.would_kill(caller, &it);
            INTERFACE: WouldRelease(Release) [NeedsLog] => server.would_release(caller, &it);
            // A daemon with an engine refuses parts of requests over nodes, so these calls do not
            // need its log.
            NODES_INTERFACE: Collect(Box<Collect>) [AsksForLock] => server.collect(caller, *it);
            NODES_INTERFACE: ConfirmAt(Box<ConfirmAt>) [IsUnrestricted] =>
                server.confirm_at(&it);
            NODES_INTERFACE: Identify(IgnoredAny) [IsUnrestricted] => server.identify();
            NODES_INTERFACE: Report(Report) [IsUnrestricted] => server.report(&it);
            NODES_INTERFACE: Restrict(Restrict) [IsUnrestricted] => server.restrict(caller, &it);
            NODES_INTERFACE: WaitsNear(WaitsNear) [IsUnrestricted] =>
                server.waits_near(caller, &it);
            SERVICE: GetInfo(IgnoredAny) [IsUnrestricted, NeedsNoTable] =>
                Ok(Step::reply(&Info::ours()));
            SERVICE: GetInterfaceDescription(DescriptionQuery) [IsUnrestricted, NeedsNoTable] =>
                Ok(Step::Answer(describe(it)));
        }
    };
}

pub(crate) use table_of_calls;
