// What the Node programs share: the payments that they carry, and how they say what it took.
import { createRequire } from 'node:module';
import { basename, dirname } from 'node:path';
import pg from 'pg';

/** Seconds without a payment moved after which a run is given up: the libraries themselves would try for ever. */
const PATIENCE = 30;

// Libraries warn of what only their authors can change.
process.noDeprecation = true;

/** Ends the program with one line that says why. */
export function fail(problem) {
  console.error(`${basename(dirname(process.argv[1]))}: ${problem?.message || problem?.code || problem}`);
  process.exit(1);
}
process.on('uncaughtException', fail);
process.on('unhandledRejection', fail);

export const url = process.env.DATABASE_URL;
export const flows = Number(process.env.FLOWS);
if (!url || !Number.isInteger(flows) || flows < 1) fail('DATABASE_URL and FLOWS must be set');
export const connections = Number(process.env.CONNECTIONS ?? 16);

const pool = new pg.Pool({ connectionString: url, max: connections });
pool.on('error', fail);
let moved = 0;

/** One edge of many payments by compare-and-set. Nothing may fail here, so that no retry hides in a figure. */
export async function move(ids, from, to) {
  try {
    const done = await pool.query('update payment set status = $2 where id = any ($1::bigint[]) and status = $3', [ids, to, from]);
    if (done.rowCount !== ids.length) fail(`${ids.length - done.rowCount} payments were not ${from}`);
    moved += done.rowCount;
  } catch (problem) {
    fail(problem);
  }
}

/** Payments that wait: ids from `first` on. */
async function payments(first, count) {
  await pool.query(`insert into payment select n, 'WAIT_PAY' from generate_series($1::bigint, $2::bigint) n`, [first, first + count - 1]);
}

/** Warms up, then prints the figures of `run(first, count)`, if it leaves every payment done. */
export async function measure(library, run) {
  await pool.query('create table payment (id bigint primary key, status text not null)');
  let before = -1;
  setInterval(() => {
    if (moved === before) fail(`nothing moved for ${PATIENCE} seconds`);
    before = moved;
  }, PATIENCE * 1000);
  const warm = Math.ceil(flows / 20);
  await payments(1, warm);
  await run(1, warm);
  await payments(warm + 1, flows);
  const began = performance.now();
  await run(warm + 1, flows);
  const seconds = (performance.now() - began) / 1000;
  const { rows } = await pool.query(`select count(*) filter (where status = 'BIZ_SUCCESS')::int as done from payment where id > $1`, [warm]);
  if (rows[0].done !== flows) fail(`${rows[0].done} of ${flows} payments are done`);
  const { version } = createRequire(import.meta.url)(`./node_modules/${library}/package.json`);
  process.stdout.write(JSON.stringify({ flows, seconds, version: `${library} ${version}` }) + '\n', () => process.exit(0));
}
