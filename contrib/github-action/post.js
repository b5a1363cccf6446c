'use strict';
// Releases the lease that main.js took, however the job ended. If the lease was lost, the step fails.

const { spawnSync } = require('child_process');

const handle = process.env.STATE_handle;
if (handle) {
    // Standard input, because other users on the machine can read command lines.
    const words = ['release', '--handle', '-'];
    const { status } = spawnSync('canal', words, { input: handle, stdio: ['pipe', 'inherit', 'inherit'] });
    process.exitCode = status ?? 1;
}
