-- Whose payments a login may see and touch.
--
-- A login named in merchant_login acts for that one merchant. Foreign rows are to it as if they did not exist. A login not
-- named there (a trusted backend, the daemon, a person) may name any merchant, or none.

create function paylatch.merchant_scope(p_asked text) returns text language plpgsql stable as $$
declare
    v_own text;
begin
    select m.merchant_id into v_own from paylatch.merchant_login m where m.login = session_user;
    -- No merchant is named '': what a bound login asks of another merchant finds nothing.
    return case when v_own is null then p_asked when p_asked <> v_own then '' else v_own end;
end $$;
comment on function paylatch.merchant_scope(text) is
    'The merchant whose rows this login may see, of those it asks for; null: any; empty: none.';

create function paylatch.in_scope(p_flow_id bigint, p_asked text) returns boolean language plpgsql stable as $$
declare
    v_scope text := paylatch.merchant_scope(p_asked);
begin
    return v_scope is null or exists (
        select from paylatch.pay_flow f join paylatch.pay_order o on o.order_id = f.order_id
        where f.flow_id = p_flow_id and o.merchant_id = v_scope);
end $$;
comment on function paylatch.in_scope(bigint, text) is
    'Whether this login may see the flow, where it asks for this merchant (null: its own, or any). True as well for an unknown flow where any may be seen.';

create function paylatch.require_in_scope(p_flow_id bigint, p_asked text) returns void language plpgsql stable as $$
begin
    if not paylatch.in_scope(p_flow_id, p_asked) then
        perform paylatch.no_such_flow(p_flow_id);
    end if;
end $$;
comment on function paylatch.require_in_scope(bigint, text) is
    'Raises PL008 for a flow of another merchant, exactly as for one that does not exist.';
