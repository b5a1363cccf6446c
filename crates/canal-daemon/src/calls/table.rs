//! The table of calls: one row for each method of the daemon's interfaces.
//!
//! To add a call, describe it in its interface file, add its parameters to `protocol/messages`, its
//! handler to `server/requests`, and a row here.

/// Passes the table to the macro `$make`. Each row has the interface and the name of a method, its
/// [`Asked`](crate::calls::call::Asked) with the parameters, its
/// [`Trait`](crate::calls::call::Trait)s, and how `server` answers the parameters `it` of a
/// `caller`.
macro_rules! table_of_calls {
    ($make:ident) => {
        $make! {
            |server, caller, it|
            (INTERFACE "Abandon") Abandon(Abandon) [] => server.abandon(caller.peer, &it);
            (INTERFACE "Acquire") Acquire(Box<Acquire>) [NeedsLog, AsksForLock] =>
                server.acquire(caller.id, it, None, caller.more, caller.fds);
            (INTERFACE "Configuration") Configuration(IgnoredAny) [] =>
                Ok(server.configuration(caller.peer));
            (INTERFACE "Confirm") Confirm(Confirm) [NeedsLog, GoesFirst] =>
                server.confirm(caller.id, caller.peer, &it);
            (INTERFACE "DeadlinePage") DeadlinePage(DeadlinePageQuery) [] => server.page(&it);
            (INTERFACE "EndedLeases") EndedLeases(EndedLeasesQuery) [] =>
                server.ended_leases(caller.peer, &it);
            (INTERFACE "Graph") Graph(GraphQuery) [IsReport] => Ok(server.graph(caller.peer));
            (INTERFACE "History") History(HistoryQuery) [IsReport] =>
                server.history(caller.id, &it);
            (INTERFACE "HistoryStats") HistoryStats(HistoryStatsQuery) [IsReport] =>
                server.history_stats(caller.id, caller.peer, &it);
            (INTERFACE "Kill") Kill(Kill) [NeedsLog] => server.kill(caller.peer, &it);
            (INTERFACE "Leader") Leader(LeaderQuery) [NeedsLog] =>
                server.leader(caller.id, caller.peer, &it, caller.more);
            (INTERFACE "Metrics") Metrics(IgnoredAny) [IsReport] => Ok(server.metrics());
            (INTERFACE "Prioritize") Prioritize(Prioritize) [NeedsLog] =>
                server.prioritize(caller.id, caller.peer, &it);
            (INTERFACE "Release") Release(Release) [NeedsLog, GoesFirst] =>
                server.release(caller.id, caller.peer, &it, caller.fds);
            (INTERFACE "Reload") Reload(IgnoredAny) [] => server.reload(caller.peer);
            (INTERFACE "Renew") Renew(Renew) [NeedsLog, GoesFirst, IsUnrestricted] =>
                server.renew(caller.id, caller.peer, &it);
            (INTERFACE "Resize") Resize(Resize) [NeedsLog] => server.resize(caller.id, &it);
            (INTERFACE "Status") Status(StatusQuery) [IsReport] =>
                server.status(caller.id, caller.peer, &it, caller.more);
            (INTERFACE "Stop") Stop(Stop) [NeedsNoTable] => server.stop(caller.peer);
            (INTERFACE "Why") Why(WhyQuery) [IsReport] => server.why(caller.peer, &it);
            (INTERFACE "WouldAcquire") WouldAcquire(WouldAcquire) [NeedsLog] =>
                server.would_acquire(caller.id, &it);
            (INTERFACE "WouldKill") WouldKill(WouldKill) [NeedsLog] =>
                server.would_kill(caller.peer, &it);
            (INTERFACE "WouldRelease") WouldRelease(Release) [NeedsLog] =>
                server.would_release(caller.id, caller.peer, &it, caller.fds);
            // A daemon with an engine refuses parts of requests over nodes, so these calls do not
            // need its log.
            (NODES_INTERFACE "Collect") Collect(Box<Collect>) [AsksForLock] =>
                server.collect(caller.id, *it, caller.more);
            (NODES_INTERFACE "ConfirmAt") ConfirmAt(Box<ConfirmAt>) [IsUnrestricted] =>
                server.confirm_at(caller.id, &it);
            (NODES_INTERFACE "Identify") Identify(IgnoredAny) [IsUnrestricted] =>
                server.identify();
            (NODES_INTERFACE "Report") Report(Report) [IsUnrestricted] => server.report(&it);
            (NODES_INTERFACE "Restrict") Restrict(Restrict) [IsUnrestricted] =>
                server.restrict(caller.id, &it);
            (NODES_INTERFACE "WaitsNear") WaitsNear(WaitsNear) [IsUnrestricted] =>
                server.waits_near(caller.id, caller.peer, &it);
            (SERVICE "GetInfo") Info(IgnoredAny) [IsUnrestricted, NeedsNoTable] =>
                Ok(Step::reply(&Info::ours()));
            (SERVICE "GetInterfaceDescription")
                Description(DescriptionQuery) [IsUnrestricted, NeedsNoTable] => Ok(describe(it));
        }
    };
}

pub(crate) use table_of_calls;
