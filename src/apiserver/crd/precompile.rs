//! Compiling the patterns and rules of a definition in the background.
//!
//! The patterns and rules of a definition are compiled away from the threads that serve, before anything else is done with it.
//!
//! They are compiled for one definition at a time, a little for each, and one of a caller at a time: whoever writes many
//! keeps one processor busy and lets others have their turn. What nobody waits for any longer is not gone on with.

use std::time::Duration;

use serde_json::Value;

use super::super::ApiServer;
use super::super::answers::status::{ApiError, FieldError, shorten};
use super::super::auth::UserIdentity;
use super::super::requests::request_context::RequestContext;
use super::super::schema::precompile::{Ahead, DefinitionTooMuch, PrecompiledHold};
use super::super::shares::blocking;
use super::super::shares::scan_scheduler::Scan;
use super::is_definition;

/// How long a turn takes, unless one pattern takes longer.
const TURN: Duration = Duration::from_millis(10);

/// What was made for a definition, and its caller's place among those who write definitions.
pub(in crate::apiserver) struct PrecompiledDefinition<'t> {
    _made: PrecompiledHold,
    _scan: Scan<'t>,
}

impl ApiServer {
    /// Makes the patterns and rules of a definition, unless they are in use.
    pub(super) async fn make_ahead(
        &self,
        identity: &UserIdentity,
        definition: &Value,
    ) -> Result<PrecompiledDefinition<'_>, DefinitionTooMuch> {
        let scan = self.inner.compilers.begin(identity).await;
        let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let schemas = versions.map(|version| &version["schema"]["openAPIV3Schema"]);
        let mut ahead = blocking::in_place_if(true, || Ahead::of(schemas))?;
        while !ahead.is_done() {
            // Also of the appliance's own rooms, which write what users wrote.
            let turn = self.inner.compilers.turn().await;
            let piece = tokio::task::spawn_blocking(move || {
                let went_on = ahead.go_on(TURN);
                // Kept until now, also when the caller is gone.
                drop(turn);
                went_on.map(|()| ahead)
            });
            // It does not panic; the runtime may be about to end.
            ahead = piece.await.map_err(|_| DefinitionTooMuch::Time)??;
        }
        Ok(PrecompiledDefinition { _made: ahead.made(), _scan: scan })
    }
}

/// Makes ready what a request writes, when that is a definition with another spec. To be kept until it is written.
pub(in crate::apiserver) async fn ready<'c>(
    context: &RequestContext<'c>,
    value: &Value,
    old: Option<&Value>,
) -> Result<Option<PrecompiledDefinition<'c>>, ApiError> {
    let is_new = old.is_none_or(|old| old["spec"] != value["spec"]);
    if !is_definition(context.resource) || context.target.subresource.is_some() || !is_new {
        return Ok(None);
    }
    let made = context.api.make_ahead(context.identity, value).await;
    made.map(Some).map_err(|reason| {
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let fault = FieldError::forbidden("spec.versions", reason.to_string());
        ApiError::invalid(context.resource, &shorten(name, 253), &[fault])
    })
}
