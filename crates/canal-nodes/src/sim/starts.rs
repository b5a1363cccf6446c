//! The tokens with which commands started.

use std::collections::BTreeMap;

use super::host::Job;
use crate::Require;
use canal_core::{OverNodes, Token};

/// The tokens with which commands started.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Per key: the tokens so far, each with its request.
    tokens: BTreeMap<u8, Vec<(Token, OverNodes)>>,
}

impl Starts {
    /// Notes a start. Tokens must grow in the order of the starts of requests that exclude each
    /// other.
    pub(super) fn note(&mut self, job: &Job, token: Token) -> Result<(), String> {
        if job.plan.require == Require::Any {
            return Ok(());
        }
        let earlier = self.tokens.entry(job.key).or_default();
        let larger =
            earlier.iter().find(|(told, over)| *told >= token && over.always_meets(&job.over));
        if let Some((told, over)) = larger {
            return Err(format!(
                "run {} of key {} starts with token {token}, after {:?} had {told}",
                job.run, job.key, over.run
            ));
        }
        earlier.push((token, job.over.clone()));
        Ok(())
    }
}
