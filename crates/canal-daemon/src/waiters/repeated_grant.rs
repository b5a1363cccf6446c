//! A grant that was decided earlier, in its current form.

use canal_core::{Granted, GrantedItem, HoldState, Table};

/// Recreates a grant that was decided earlier from its hold. `acquired` is the number held now.
pub(crate) fn granted(table: &Table, hold: &HoldState) -> Granted {
    let items = hold.items.iter().map(|item| GrantedItem {
        acquired: table.held_of(&item.key),
        slots: item.slots.clone(),
        shared: item.shared,
        view: item.view,
    });
    Granted {
        request: hold.request,
        frame: hold.frame,
        token: hold.token,
        items: items.collect(),
        bypassed_blockers: false,
    }
}
