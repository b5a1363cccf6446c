'use strict';
// Runs the commands under the lock, or takes the lock as a lease that post.js releases.

const { spawn } = require('child_process');
const { appendFileSync } = require('fs');

const input = (name) => (process.env[`INPUT_${name}`] || '').trim();

const lock = ['--key-literal', input('KEY'), '--wait', input('WAIT') || 'infinity'];
if (input('SLOTS')) {
    lock.push('--slots', input('SLOTS'));
}

const commands = process.env.INPUT_RUN || '';
if (commands.trim()) {
    run(['run', ...lock, '--', 'bash', '-eo', 'pipefail', '-c', commands]);
} else {
    acquire(['acquire', '--ttl', input('TTL') || '2m', ...lock]);
}

/** Runs canal, and ends as it does. */
function run(words) {
    const canal = spawn('canal', words, { stdio: 'inherit' });
    // The runner signals only this process when a job is cancelled.
    for (const signal of ['SIGINT', 'SIGTERM']) {
        process.on(signal, () => canal.kill(signal));
    }
    canal.on('error', missing);
    canal.on('exit', (code, signal) => {
        if (signal) {
            console.log(`the command was ended by ${signal}`);
        }
        process.exitCode = code ?? 1;
    });
}

/** Takes the lease, gives it to the later steps, and renews it while the runner's worker lives. */
function acquire(words) {
    const canal = spawn('canal', words, { stdio: ['ignore', 'pipe', 'inherit'] });
    for (const signal of ['SIGINT', 'SIGTERM']) {
        process.on(signal, () => canal.kill(signal));
    }
    let printed = '';
    canal.stdout.on('data', (data) => { printed += data; });
    canal.on('error', missing);
    canal.on('close', (code) => {
        if (code !== 0) {
            process.exitCode = code ?? 1;
            return;
        }
        const variable = (name) => new RegExp(`^${name}=(.*)$`, 'm').exec(printed)[1];
        const handle = variable('CANAL_HANDLE');
        console.log(`::add-mask::${handle}`);
        // First of all, so that the lease is released whatever happens next.
        appendFileSync(process.env.GITHUB_STATE, `handle=${handle}\n`);
        appendFileSync(process.env.GITHUB_ENV, printed);
        appendFileSync(process.env.GITHUB_OUTPUT, `token=${variable('CANAL_TOKEN')}\n`);
        // This process ends with its step. Its parent is the worker, which ends with the job.
        spawn('canal', ['renew', '--while', String(process.ppid)], {
            detached: true,
            env: { ...process.env, CANAL_HANDLE: handle },
            stdio: 'ignore',
        }).unref();
    });
}

function missing(error) {
    console.log(`::error::canal cannot be executed on this runner: ${error.message}`);
    process.exitCode = 127;
}
