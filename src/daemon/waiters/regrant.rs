//! A grant that was decided earlier, as it would be sent now.

use crate::core::{Granted, GrantedItem, HoldState, Table};

/// A grant that was decided earlier, made again from its hold. `acquired` is what is held now.
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
