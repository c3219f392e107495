// What the Node programs share: the payments that they carry, and how they say what it took.
import { createRequire } from 'node:module';
import pg from 'pg';

export const url = process.env.DATABASE_URL;
export const flows = Number(process.env.FLOWS);
if (!url || !flows) {
  console.error('DATABASE_URL and FLOWS must be set');
  process.exit(1);
}

export const pool = new pg.Pool({ connectionString: url, max: Number(process.env.CONNECTIONS ?? 16) });

/** Payments that wait: ids from `first` on. */
export async function payments(first, count) {
  await pool.query('create table if not exists payment (id bigint primary key, status text not null)');
  await pool.query(`insert into payment select n, 'WAIT_PAY' from generate_series($1::bigint, $2::bigint) n`, [first, first + count - 1]);
}

/** One edge of many payments by compare-and-set. */
export async function move(ids, from, to) {
  const done = await pool.query('update payment set status = $2 where id = any ($1::bigint[]) and status = $3', [ids, to, from]);
  if (done.rowCount !== ids.length) throw new Error(`${ids.length - done.rowCount} payments were not ${from}`);
}

/** Ends the program: the figures, if every payment is done. */
export async function finish(first, seconds, library) {
  const { rows } = await pool.query(`select count(*) filter (where status = 'BIZ_SUCCESS')::int as done from payment where id >= $1`, [first]);
  if (rows[0].done !== flows) {
    console.error(`${library}: ${rows[0].done} of ${flows} payments are done`);
    process.exit(1);
  }
  const { version } = createRequire(import.meta.url)(`./node_modules/${library}/package.json`);
  process.stdout.write(JSON.stringify({ flows, seconds, version: `${library} ${version}` }) + '\n', () => process.exit(0));
}

process.on('unhandledRejection', (problem) => {
  console.error(problem);
  process.exit(1);
});
