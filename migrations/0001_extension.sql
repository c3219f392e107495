-- The extension brings code (domains, rules, triggers, commands); the migrations after this one bring data.
-- Run as a superuser, by `paylatchd migrate` or by hand with psql, in the order of their numbers.

create schema if not exists paylatch;
create extension paylatch version '0.1.0';

-- Group roles over functions; grant one of them to a login role. They are shared by all databases of the cluster.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['paylatch_owner', 'paylatch_app', 'paylatch_driver', 'paylatch_operator',
                                  'paylatch_approver', 'paylatch_auditor'] loop
        begin
            execute format('create role %I nologin', v_role);
        exception when duplicate_object or unique_violation then
            null; -- made for another database of this cluster
        end;
    end loop;
end $$;
